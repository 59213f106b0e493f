"""The state of one worker's model: its variables, and snapshots of them."""
