"""`pybroker serve` in a process that may open few files: `python -m tests.support.few_descriptors serve ...`."""

import resource
import sys

from pybroker import cli

LIMIT = 200

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT // 2, LIMIT))
    sys.exit(cli.main())
