"""Statehouse: queryable state for Spark.

The shared kernel: imported by the processor, the query service and the router, and importing none of them.
"""
