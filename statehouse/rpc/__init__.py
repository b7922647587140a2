"""The few places that touch grpcio."""
