"""One verdict for any pod, whether or not kube-scheduler has asked about it: runs, fits, waits, gated or never, in one
sentence; how many nodes each stage of the filter leaves; the nearest miss; and the cheapest ways out. Each way is
verified by our own filter on the tables as they would be with the change. It changes nothing.

Other packages use `explain.Explainer`; `whatif` uses `judge.Judge` and `nodes.read`, the filter over all nodes."""
