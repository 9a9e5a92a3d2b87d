"""The measures of the architecture: how large packages, files, classes and functions are (docs/architecture.md)."""
