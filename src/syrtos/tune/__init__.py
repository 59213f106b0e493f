"""Short trial runs of a script: its batch size and its learning rate."""
