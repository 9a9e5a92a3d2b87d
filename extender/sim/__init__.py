"""The embedded cluster: what a machine without Kubernetes needs to see the server at work.

Who belongs here: simulated nodes, pods, kubelets and a scheduler, and a day on them. Everything is seeded and told the
time; nothing here reads a clock, opens a file of the user's or speaks to another machine. The scheduler speaks to the
server over HTTP as kube-scheduler does, and knows nothing of its inside; what is checked is checked against the
simulated kubelets, who alone know which GPU a pod holds.
"""
