"""The engines that run workers on clusters of Kubernetes and of Ray."""
