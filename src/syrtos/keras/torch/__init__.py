"""Keras 3 on torch: each worker computes its share of a batch, eagerly, and syrtos exchanges gradients and states between the steps' parts."""
