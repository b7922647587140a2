"""Kafka's own command-line tools next to ours."""
