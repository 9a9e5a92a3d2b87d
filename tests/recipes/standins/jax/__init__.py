"""What docs/examples/saving/train_jax.py uses of JAX, which is too large to install for a test."""

import time
from types import SimpleNamespace


def grad(function):
    return lambda weights, inputs: -100.0


def jit(function):
    return function


def device_get(array):
    return array


def _normal(key, shape):
    time.sleep(0.002)
    return key


random = SimpleNamespace(PRNGKey=lambda seed: seed, normal=_normal)
