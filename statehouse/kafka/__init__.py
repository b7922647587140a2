"""The few places that touch the Kafka client."""
