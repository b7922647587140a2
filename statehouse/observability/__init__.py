"""Logs, metrics, traces, health probes and listeners.

Nothing here decides anything.
"""
