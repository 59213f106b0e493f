"""What `syrtos tune` runs inside of a worker."""
