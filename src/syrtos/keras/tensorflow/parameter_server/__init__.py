"""Training over parameter servers, which hold the weights and apply the optimizers."""
