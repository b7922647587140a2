"""What the live page costs, and how it takes a large fleet."""
