"""python -m engines.sim"""

import sys

from .cli import main

sys.exit(main())
