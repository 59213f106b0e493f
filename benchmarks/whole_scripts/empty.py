"""Does nothing: what starting and ending costs."""
