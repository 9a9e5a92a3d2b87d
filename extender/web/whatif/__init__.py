"""POST /debug/whatif, and whether there is memory for its answer."""
