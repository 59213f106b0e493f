"""What will be wrong or slow: of a script on several workers, and of a machine."""
