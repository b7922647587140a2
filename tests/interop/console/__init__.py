"""Kafka's own command-line tools beside ours."""
