"""A `fit` as the workers run it together: the script's callbacks, the trainer's methods, and the times of their parts."""
