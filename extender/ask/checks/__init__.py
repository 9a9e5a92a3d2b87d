"""What `gpu-extender check` looks for: one file a subject, each with `findings(posture)`. `check` is all of them."""
