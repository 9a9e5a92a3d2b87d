"""Nodes: their rows in the tables, the columns that follow from the Node object, and which pods they accept."""
