"""What moments cost those that write, follow and read: `python -m bench.moments`."""
