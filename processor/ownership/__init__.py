"""The ownership controller: decides which query node is the active and which nodes are standbys of each task.

Nothing here needs Spark or an application.
"""
