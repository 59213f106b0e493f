"""The commands of training jobs, which `syrtos` finds by entry points of `syrtos.commands`."""

TITLE = "jobs in the manner of SageMaker"
