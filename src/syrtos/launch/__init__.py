"""Where workers start: a printable plan, then processes that are watched until all have ended."""
