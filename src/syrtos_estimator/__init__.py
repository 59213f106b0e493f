"""The dialect of `tf.estimator` over the workers. Its modules are imported when a script uses it."""
