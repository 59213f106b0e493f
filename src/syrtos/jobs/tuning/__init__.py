"""Hyperparameter tuning jobs: training jobs whose hyperparameters are chosen from the results of those before them."""
