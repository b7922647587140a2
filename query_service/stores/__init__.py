"""State stores: what a task keeps of a changelog partition."""
