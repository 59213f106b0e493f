"""Data that Keras reads from syrtos's plans, and batches of Keras's own adapters."""
