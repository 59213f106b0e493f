"""The launcher: makes a printable plan, starts the workers as processes, and watches them until all have ended."""
