"""The records of a worker's time: its clock, its ledger, profiles, and samples of its process and machine."""
