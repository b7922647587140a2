"""The proxy program, and the socket that joins a server to it.

Nothing here decides what is answered.
"""
