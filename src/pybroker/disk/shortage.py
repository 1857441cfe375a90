"""Detection of disk errors that may go away: no space, and no file descriptors. All other write errors are permanent."""

from __future__ import annotations

import errno


def lacks_room(error: OSError) -> bool:
    return error.errno in {errno.ENOSPC, errno.EDQUOT} or lacks_descriptors(error)


def lacks_descriptors(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}
