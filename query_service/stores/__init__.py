"""State stores: each keeps the content of a changelog partition. Nothing here knows Kafka or a task."""
