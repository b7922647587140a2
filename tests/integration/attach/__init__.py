"""Jobs as strangers write them, and `statehouse attach` beside them."""
