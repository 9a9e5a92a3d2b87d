"""What docs/examples/saving/train_pytorch.py uses of PyTorch, which is too large to install for a test."""

import pickle
import random
from types import SimpleNamespace


class Tensor:
    def __sub__(self, other):
        return self

    def sum(self, dim, keepdim):
        return self

    def pow(self, power):
        return self

    def mean(self):
        return self

    def backward(self):
        Linear.steps += 1


class Linear:
    steps = 0

    def __init__(self, inputs, outputs):
        self.weight = random.random()

    def __call__(self, inputs):
        return inputs

    def parameters(self):
        return [self]

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, state):
        self.weight = state["weight"]


class SGD:
    def __init__(self, parameters, lr):
        (self.model,) = parameters

    def zero_grad(self):
        pass

    def step(self):
        self.model.weight += 1

    def state_dict(self):
        return {"lr": 0.01}

    def load_state_dict(self, state):
        assert state == {"lr": 0.01}


def randn(*shape):
    import time

    time.sleep(0.002)
    return Tensor()


def save(state, path):
    with open(path, "wb") as file:
        pickle.dump(state, file)


def load(path):
    with open(path, "rb") as file:
        return pickle.load(file)


nn = SimpleNamespace(Linear=Linear)
optim = SimpleNamespace(SGD=SGD)
