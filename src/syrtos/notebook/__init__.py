"""A function of a notebook on many workers: what travels there, and what comes back."""
