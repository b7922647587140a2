"""How slow a flood makes other callers: `python -m bench.floods`."""
