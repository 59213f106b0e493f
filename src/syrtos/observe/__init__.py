"""The records of a worker's time.

They are its clock, its ledger, profiles, and samples of its process and machine.
"""
