"""Demand: the kinds of GPU pods that came, and how much weight the kinds to come get in the price of slots."""
