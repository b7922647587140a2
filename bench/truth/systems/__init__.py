"""What is asked: each system as its experts run it."""
