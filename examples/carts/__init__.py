"""Shopping carts, and those that were abandoned."""
