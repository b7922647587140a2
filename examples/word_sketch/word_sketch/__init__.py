"""Word counts: Spark keeps a count-min sketch of each channel's words, and a custom store answers from it."""
