"""The service's one port: SageMaker, CloudWatch, STS, IAM and S3 for AWS's SDKs, and a web page."""
