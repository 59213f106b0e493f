"""Keras on JAX: XLA compiles one program over the devices of all workers, and exchanges inside it.

`jax.distributed` joins the processes, a `keras.distribution.DataParallel` over all devices makes
Keras compute global batches, and every process holds the whole batch, of which its devices get
their rows. Losses, dropout masks and BatchNormalization are one process's.
"""
