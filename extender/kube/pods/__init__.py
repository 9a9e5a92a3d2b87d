"""What is written on pods, one file a write: Bindings, evictions, nominations, and gates."""
