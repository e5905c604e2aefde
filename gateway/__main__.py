"""`python -m gateway` is the same program as `kvgate`."""

import sys

from gateway.cli.program import main

sys.exit(main())
