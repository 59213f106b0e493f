"""Engines place the processes of a run: Slurm, Kubernetes, Ray, this machine, or something that has started them already.

`syrtos.engines.engine` has the interface, and each engine has a folder.
"""
