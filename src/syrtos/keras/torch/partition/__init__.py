"""Partitions a step of torch: all workers compute one program of the whole batch.

Each worker has its rows of what has rows; see `placed.PlacedTensor`.
"""
