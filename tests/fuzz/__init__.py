"""Random hostile input for everything that reads input: bodies, watched objects, settings files, cluster files.

`python -m tests.fuzz` is the command (`make fuzz`); `engine` runs episodes, shrinks and saves what fails; each part
makes the steps of an episode from a seed and plays them against the real code.
"""

from __future__ import annotations

from tests.fuzz.bodies import Bodies
from tests.fuzz.engine import Part
from tests.fuzz.files import ClusterFiles, SettingsFiles
from tests.fuzz.watched import Watched

PARTS: tuple[Part, ...] = (Bodies(), Watched(), SettingsFiles(), ClusterFiles())
