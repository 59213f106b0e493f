"""Short trial runs of a script that find a batch size and a learning rate for it."""
