"""What could start now, and what would make more possible: the largest pod, gangs by level, whole nodes; what would
start the first that wait; and advice, which is never carried out: other requests, a drain, more machines."""
