"""Programs of the whole batch, partitioned over the workers."""
