"""The cluster as the verbs see it: the only writer of its tables."""
