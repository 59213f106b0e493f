"""The service's one port: SageMaker, CloudWatch Logs, STS, IAM and S3 as AWS's SDKs speak to them, and a page for people."""
