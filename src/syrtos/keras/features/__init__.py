"""The options of training: each is one file, and does nothing where it is not asked for."""
