"""filter, prioritize, preempt, bind: bytes in, bytes and intents out; no await, no I/O."""
