"""The cluster's state as data, and the cluster that has it again: a record begins with it.

What follows from the objects alone is not in it. What is: the objects, in the order of the rows that nodes have in the
tables; and what depends on the past: since when pods settle, which device plugins are away, failures, learned demand.
"""

from extender.cluster.saved.state import Saved, SavedCluster, restore, save

__all__ = ["Saved", "SavedCluster", "restore", "save"]
