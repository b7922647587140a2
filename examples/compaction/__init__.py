"""The latest reading of each sensor, in a store with Kafka's default settings and in one that is compacted soon."""
