"""What the data plane answers on its own: compiled from what the node has decided, and the rule that it goes by.

Nothing here answers: what a snapshot doesn't cover is for the room `reads`.
"""
