"""Effects outside of Kafka, exactly once: a consumer that keeps its position next to its effects."""
