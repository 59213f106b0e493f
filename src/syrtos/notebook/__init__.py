"""Calls of a notebook's function on many workers: transport of the function and its result."""
