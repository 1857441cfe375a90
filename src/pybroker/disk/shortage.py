"""Which errors of a disk pass by themselves: a lack of room, and of descriptors. Any other error of a write does not."""

from __future__ import annotations

import errno


def lacks_room(error: OSError) -> bool:
    """Whether `error` says that there is no room, or no descriptor for one more file: both pass, any other write error does not."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT} or lacks_descriptors(error)


def lacks_descriptors(error: BaseException | None) -> bool:
    """Whether the process, or the whole machine, has as many files open as it may."""
    return isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}
