"""The victim search that preempt, the eviction controller and what-if share."""
