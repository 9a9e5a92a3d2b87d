"""The GPUs of nodes: their graphs, how they are divided, which pod holds which, and known device-plugin faults."""
