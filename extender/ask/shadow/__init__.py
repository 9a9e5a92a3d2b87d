"""Shadow mode: what kube-scheduler decides alone beside what we would have decided. It reads, and changes nothing.

`watch.py` sees each pod as it is bound, in the state before; `choice.py` decides where we would have placed it;
`effect.py` what a placement takes and leaves; `victims.py` what an eviction costs; `report.py` counts, and keeps a few
examples.
"""
