"""A `fit` as the workers run it together: callbacks, the trainer's methods, and the times of their parts."""
