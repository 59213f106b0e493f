"""Keras 2 (`tf_keras`) on several workers: its patches, over those of TensorFlow in the core."""
