"""Term importance: what paths of each order do for the loss."""
