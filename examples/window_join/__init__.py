"""Orders and payments that belong together within three days."""
