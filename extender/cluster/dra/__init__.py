"""DRA: the GPUs that drivers publish in ResourceSlices, and the pods that hold them by ResourceClaims.

`store.py` adds them to the records of nodes and pods, so that all else counts them as it counts those of a device
plugin. `resource_slices.py`: what a node has, and which kinds of devices a class selects; `claims.py`:
what pods hold and ask for, and the claims whose devices the queue allocates.
"""
