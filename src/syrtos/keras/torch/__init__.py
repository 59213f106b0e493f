"""Keras 3 on torch: each worker computes its share of a batch, eagerly.

Between the parts of a step syrtos exchanges gradients and states.
"""
