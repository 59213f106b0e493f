"""SageMaker-shaped training jobs on the user's own machines."""
