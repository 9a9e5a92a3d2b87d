"""Record and replay."""
