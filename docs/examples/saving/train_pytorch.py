"""The same with PyTorch; with several pods each rank saves its own part, as torch.distributed.checkpoint does.

python train_pytorch.py DIRECTORY [STEPS]
"""

import os
import sys

import torch
from save_request import SAVED, begin, should_save

DIRECTORY, STEPS = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
CHECKPOINT = os.path.join(DIRECTORY, f"checkpoint-{os.environ.get('RANK', '0')}.pt")

begin()
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
if os.path.exists(CHECKPOINT):
    state = torch.load(CHECKPOINT)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]


def save():
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, CHECKPOINT + ".new")
    os.replace(CHECKPOINT + ".new", CHECKPOINT)


while step < STEPS:
    inputs = torch.randn(32, 16)
    loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if should_save():
        save()
        sys.exit(SAVED)
save()
