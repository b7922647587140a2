"""What moments cost those that write and those that follow: `python -m bench.moments`."""
