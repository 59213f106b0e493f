"""How a step is split over the workers: by shares of its batch, proven on the first batch, or not at all."""
