"""A `fit` as the workers run it together: callbacks, trainer methods, and times of parts."""
