"""The part of `syrtos tune` that runs inside of a worker."""
