"""What a model wants to know about each user: sums of their events, and their profile."""
