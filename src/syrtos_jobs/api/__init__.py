"""SageMaker's training operations, and the jobs that they create."""
