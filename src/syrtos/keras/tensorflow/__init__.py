"""Keras on TensorFlow: a `tf.distribute` strategy whose replicas are the workers.

A process that imports a module of this folder works with TensorFlow's variables, in scripts without
Keras too.
"""

from syrtos.keras import backend
from syrtos.keras.tensorflow.variables import TensorFlow

backend.use(TensorFlow(), unless_chosen=True)
