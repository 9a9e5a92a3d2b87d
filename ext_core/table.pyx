"""See the module of the same name in docs/architecture.md."""
