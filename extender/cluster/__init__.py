"""The cluster as the verbs see it: `Cluster` is the only writer of its state, readers get a `ClusterView`."""
