"""The live page. Nothing here decides what a fleet does."""
