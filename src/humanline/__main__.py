"""`python -m humanline`, and so `accelerate launch -m humanline`."""

from __future__ import annotations

import sys

from humanline.cli import main

if __name__ == "__main__":
    sys.exit(main())
