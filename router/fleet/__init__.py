"""What the router knows of the fleet: control records in, an immutable routing table out. Nothing here asks a node."""
