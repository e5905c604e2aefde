"""`python -m kvbm` is `kvbm`."""

import sys

from kvbm.cli import main

if __name__ == "__main__":
    sys.exit(main())
