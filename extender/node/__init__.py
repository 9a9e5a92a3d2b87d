"""What runs on a GPU node: the agent (sees) and the relay (makes the plan hold).

Who belongs here: what needs a node's sockets, files or drivers. Nothing of the server is imported, and little of
anything else: the relay stands between kubelet and every GPU of the node, so it must start fast and stay small.
"""
