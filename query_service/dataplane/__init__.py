"""Stores that the data plane holds: a program in Go, which carries out what is decided elsewhere.

Nothing here decides what is opened, read or kept.
"""
