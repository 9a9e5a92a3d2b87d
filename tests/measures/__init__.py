"""The measures of the architecture: how large files, functions and kernels are (docs/architecture.md)."""
