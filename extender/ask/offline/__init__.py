"""Questions about a cluster that was read from a file."""
