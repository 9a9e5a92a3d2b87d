"""`gpu-extender` and `python -m extender`."""

import sys

from extender.cli import main

if __name__ == "__main__":
    sys.exit(main())
