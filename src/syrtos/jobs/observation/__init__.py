"""What a job prints and measures: its logs, metrics and their series."""
