"""The split of a step over the workers, by shares of its batch, if the first batch proves it."""
