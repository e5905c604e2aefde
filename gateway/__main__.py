"""`python -m gateway` is the same program as `kvgate`."""

import sys

from gateway.cli import main

sys.exit(main())
