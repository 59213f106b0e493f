"""Snapshots of a whole run: in memory that outlives the workers, and in files that outlive the launcher."""
