"""DRA: the GPUs that drivers publish in ResourceSlices, and the pods that hold them by ResourceClaims.

`store.py` adds them to the records of nodes and pods, so that all else counts them as it counts those of a device
plugin. `slices.py`: what a node has; `selectors.py`: which devices a DeviceClass selects; `planned.py`: the claims
whose devices the queue allocates.
"""
