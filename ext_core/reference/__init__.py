"""The slow, obvious twin of every kernel, one file a module. Tests import it, the server never does."""
