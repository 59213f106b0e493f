"""Tensors between workers."""
