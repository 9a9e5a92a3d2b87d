"""What would happen to pods and gangs, placed together on one copy of the cluster: where each goes, which pods would
be evicted, and the ways out of what does not fit. One engine for a file, a listed cluster and a running server; it
changes nothing but its copy.

Other packages use `question.read`, `engine.answer`, `snapshot.SupposedCluster` and `live.copied`."""
