"""Benchmarks: our fleet next to a Kafka Streams application, on the same data and under the same load."""
