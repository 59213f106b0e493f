"""What workers print, on its way to the terminal."""
