"""What a single machine needs to run everything: a Java runtime, the jars, and a Kafka broker.

For development, tests and demonstrations. Nothing here is used in production.
"""
