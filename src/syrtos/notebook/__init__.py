"""A function of a notebook on several workers."""
