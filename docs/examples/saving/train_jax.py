"""The same with JAX. The state is a tree of arrays; orbax.checkpoint does the same for large ones.

python train_jax.py DIRECTORY [STEPS]
"""

import os
import pickle
import sys

import jax
import jax.numpy as jnp
from save_request import SAVED, begin, should_save

DIRECTORY, STEPS = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
CHECKPOINT = os.path.join(DIRECTORY, "checkpoint.pickle")


def loss(weights, inputs):
    return jnp.mean((inputs @ weights - jnp.sum(inputs, axis=1)) ** 2)


def update(weights, inputs):
    return weights - 0.01 * jax.grad(loss)(weights, inputs)


def save(step, weights):
    with open(CHECKPOINT + ".new", "wb") as file:
        pickle.dump((step, jax.device_get(weights)), file)
    os.replace(CHECKPOINT + ".new", CHECKPOINT)


begin()
step, weights = 0, jnp.zeros(16)
if os.path.exists(CHECKPOINT):
    with open(CHECKPOINT, "rb") as file:
        step, weights = pickle.load(file)
update = jax.jit(update)
while step < STEPS:
    weights = update(weights, jax.random.normal(jax.random.PRNGKey(step), (32, 16)))
    step += 1
    if should_save():
        save(step, weights)
        sys.exit(SAVED)
save(step, weights)
