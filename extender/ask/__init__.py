"""Answers people: each question reads a cluster that nothing else changes. Live that is a fork of the server (`forks`).

`explain.Explainer` has one verdict for any pod, whether or not kube-scheduler has asked about it: runs, fits, waits,
gated or never, in one sentence; how many nodes each stage of the filter leaves; the nearest miss; and the cheapest ways
out. Each way is verified by our own filter on the tables as they would be with the change. `judge.Judge` and
`nodes.read` are the filter over all nodes; `whatif` asks them about pods that no cluster has."""
