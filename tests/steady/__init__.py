"""A long run of one server: whether it gets slower, or larger."""
