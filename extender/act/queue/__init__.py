"""The queue's writes: it reserves the seats of a gang, nominates its pods, and opens their gates."""
