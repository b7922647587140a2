"""The router's metrics. Nothing here decides."""
