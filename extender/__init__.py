"""A server that answers kube-scheduler."""
