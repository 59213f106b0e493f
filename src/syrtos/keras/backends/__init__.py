"""One module per Keras backend: its tensors on the wire."""
