"""Node health: the GPU pods that failed on each node, and the nodes that are rejected for it."""
