"""What we know of Spark and its Java: sessions, versions, plans, checkpoints, workers.

Nothing here knows an application or a store.
"""
