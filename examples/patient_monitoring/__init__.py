"""Patient monitoring: counts heart beats per minute, and raises an alert for a fast pulse with a fever."""
