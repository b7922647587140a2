"""Benchmarks: our fleet beside a Kafka Streams application, on the same data and under the same load."""
