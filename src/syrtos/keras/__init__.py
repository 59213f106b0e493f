"""The only room that imports Keras."""
