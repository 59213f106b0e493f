"""Files that a script writes and reads while several workers run it."""
