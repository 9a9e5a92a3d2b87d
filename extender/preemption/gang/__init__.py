"""The victim search for a whole gang, over many nodes: what nodes take, what victims cost together, bounds, search."""
