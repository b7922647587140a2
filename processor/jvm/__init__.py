"""Our Java classes that Spark's driver and executors load: their sources, and the one jar that is made of them.

Nothing here knows an application, a store or a session.
"""
