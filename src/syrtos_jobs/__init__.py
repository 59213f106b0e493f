"""SageMaker-shaped training jobs on the user's own machines."""

# The extra of the distribution that has what this package needs.
EXTRA = "jobs"
