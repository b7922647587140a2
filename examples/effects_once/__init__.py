"""Effects outside of Kafka, exactly once: a consumer that keeps its position beside its effects."""
