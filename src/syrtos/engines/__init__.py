"""Where the processes of a run are placed: by Slurm, Kubernetes, Ray, or by something that has started them already.

`syrtos.engines.engine` has the interface, and each engine has a folder.
"""
