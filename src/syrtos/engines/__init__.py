"""Engines, which place the processes of a run.

An engine is Slurm, Kubernetes, Ray, this machine, or something that has started the processes
already. `syrtos.engines.engine` has the interface, and each engine has a folder.
"""
