"""How old an event is when the changelog shows it, and where a batch's time goes: `python -m bench.freshness`."""
