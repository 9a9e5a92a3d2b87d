"""A discrete-event simulation of gangs that queue for the GPUs of a cluster, with the rivals of `ours`.

`workloads` draws gangs, `world` has the cluster and the clock, `places` the placements of the rivals, `pod_by_pod`,
`kueue`, `easy` and `conservative` are the rivals, `ours` calls the product's own code, `measures` and `report` say what
came out.
"""
