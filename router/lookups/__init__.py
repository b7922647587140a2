"""Lookups: find the partition, ask its replicas in order, put answers together. Nothing here follows the fleet."""
