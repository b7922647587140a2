"""The `statehouse` command."""
