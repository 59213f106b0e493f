"""The logs and metrics of a job, and their series."""
