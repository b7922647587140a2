"""What a processor says of its batches: commit records, progress, spans, metrics.

Nothing here decides what a batch does.
"""
