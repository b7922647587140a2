"""Kafka: clients, topics, transactions, and the control topics as logs.

Nothing here knows what a record means.
"""
