"""Conversion of scripts of old APIs to plain Keras 3 of the same mathematics."""
