"""The launcher: makes a printable plan, starts the worker processes, and watches until all end."""
