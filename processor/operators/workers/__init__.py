"""The parts of operators that run in Spark's Python workers, on the rows of one bucket of keys.

Nothing here is for applications to import: the operators one folder above are.
"""
