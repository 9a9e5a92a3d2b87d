"""Of jax.numpy: arrays are numbers here."""


def zeros(size):
    return 0.0
