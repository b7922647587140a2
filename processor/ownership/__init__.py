"""Decides which query node is the active and which nodes are standbys of each task."""
