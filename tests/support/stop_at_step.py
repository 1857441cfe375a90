"""`python -m tests.support.stop_at_step DIRECTORY N ARGUMENTS...`: run `pybroker ARGUMENTS`, and end the process without any
cleanup before its N-th change of a file below DIRECTORY. Exit code 99 then.
"""

import os
import sys
from pathlib import Path

from pybroker.cli.program import main

STOPPED = 99
_CHANGES = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link"})


def stop_before(directory: str, step: int) -> None:
    """Count opened, renamed, removed and created files."""
    count = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if event != "open" and event not in _CHANGES and event != "sqlite3.connect":
            return
        if directory in str(arguments[0]):
            count += 1
            if count == step:
                os._exit(STOPPED)

    sys.addaudithook(hook)


if __name__ == "__main__":
    stop_before(str(Path(sys.argv[1]).absolute()), int(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
