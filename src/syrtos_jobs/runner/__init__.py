"""An attempt at a job: its instances, code, environment and workers."""
