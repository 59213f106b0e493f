"""The way of a run back to where it was when a worker died."""
