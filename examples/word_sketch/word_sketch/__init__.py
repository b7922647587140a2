"""How often was a word said: count-min sketches of a channel's words, kept by Spark, answered by a custom store."""
