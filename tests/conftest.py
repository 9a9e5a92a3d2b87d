"""What holds for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# In CI the same examples every time: a change fails on what it broke. By hand, new ones each time.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("by-hand", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "by-hand")
