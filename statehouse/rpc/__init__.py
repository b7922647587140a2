"""gRPC: servers, channels, and what both say of failures.

Nothing here knows a store.
"""
