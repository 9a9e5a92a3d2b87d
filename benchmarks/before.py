"""The arm `before`: gpu-extender as it was at one commit, built from this repository's own history.

python -m benchmarks.before      builds it where it is not there yet, and prints its folder
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from benchmarks import say
from tests.e2e import commits

COMMIT: Final = "fba418f670f80cfacfbe57ac39145b6cd0c8d9be"


def tree() -> Path:
    """The folder with the files and kernels of COMMIT; built when it is not there yet. CommitUnavailable."""
    return commits.tree(COMMIT, say)


def main() -> int:
    """Builds, and prints the folder on standard output."""
    try:
        print(tree())
    except commits.CommitUnavailable as reason:
        say(str(reason))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
