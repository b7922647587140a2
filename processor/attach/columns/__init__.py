"""How the columns of a state become the keys and values of a store.

Nothing here reads a checkpoint.
"""
