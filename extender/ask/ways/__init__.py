"""Ways out: one file for each kind of change that makes a pod fit. docs/explain.md defines the smaller change."""
