"""Calls of a notebook's function on many workers: the transport of the function, and of its result."""
