"""Exchanges of tensors between workers."""
