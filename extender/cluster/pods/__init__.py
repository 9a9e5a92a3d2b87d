"""Pods: where they are, their rows in the tables, and the gangs, budgets and workloads that they belong to."""
