"""Events on pods and nodes that have an unknown name or value with our prefix."""
