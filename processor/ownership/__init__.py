"""Who serves what: which query node is active and which are standbys for each task."""
