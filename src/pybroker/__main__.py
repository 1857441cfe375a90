"""`python -m pybroker` is the command `pybroker`."""

import sys

from pybroker.cli import main

sys.exit(main())
