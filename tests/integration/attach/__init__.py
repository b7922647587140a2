"""Jobs as strangers write them, and `statehouse attach` next to them."""
