"""Hyperparameter tuning jobs: training jobs with values chosen by the results of earlier ones."""
