"""The slow, obvious twin of every kernel, in plain Python over lists. Tests import it; the server never does."""
