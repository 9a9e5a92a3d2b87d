"""The seats as they are kept: their ConfigMaps, and which instances know what stands there."""
