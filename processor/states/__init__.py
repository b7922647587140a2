"""The states of a processor, its queries and its controller, who hears of changes, and what a health probe says.

Nothing here starts or stops anything.
"""
