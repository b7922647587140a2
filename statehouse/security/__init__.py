"""Identifies callers and says what they may do. Files of certificates and rules are read anew when they change.

Nothing here answers a call.
"""
