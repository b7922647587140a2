"""Reads: decides which replica may answer, and reads the answer. Nothing here writes to a store or changes a task."""
