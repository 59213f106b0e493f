"""The split of a step over the workers: by shares of its batch, proven on the first batch, or not at all."""
