"""What is assumed or reserved and not yet visible in the watch."""
