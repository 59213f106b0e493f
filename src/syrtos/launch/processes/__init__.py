"""Processes of this machine: started or forked, joined by PMI, seen to end, and signalled."""
