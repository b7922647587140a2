"""What each page shows, as values: a page and its JSON twin are made from the same. Nothing here asks a node. Pure."""
