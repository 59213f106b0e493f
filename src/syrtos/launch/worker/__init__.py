"""The program of a worker: what runs in its process before, around and after the script."""
