"""Snapshots of a whole run, in memory and in files.

The memory outlives the workers, and the files outlive the launcher.
"""
