"""Scripts of old APIs turned into plain Keras 3 of the same mathematics."""
