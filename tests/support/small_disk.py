"""A small disk in memory for one process, which tests can fill: a tmpfs in a mount namespace of its own.

It needs no privileges, only user namespaces. The namespace ends with its holder, and the holder with the test process, so
that no mount is left behind.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

_FILL_NAME = "fill"
_BLOCK_BYTES = 64 * 1024


class SmallDisk:
    """A disk of `size_mib` at `directory`, for processes that are started with the words of `prefix`."""

    def __init__(self, directory: Path, size_mib: int) -> None:
        directory.mkdir(parents=True)
        script = f'mount -t tmpfs -o size={size_mib}m tmpfs "$0" && echo mounted && exec cat'
        self._holder = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, str(directory)],
            stdin=subprocess.PIPE,  # closed with this process: `cat` ends
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"mounted\n", "no disk could be mounted"
        self.prefix = [
            "nsenter",
            f"--target={self._holder.pid}",
            "--user",
            "--mount",
            "--preserve-credentials",
            f"--wd={Path.cwd()}",
        ]
        self.path = Path(f"/proc/{self._holder.pid}/root{directory.resolve()}")
        """The directory, as seen by processes outside of the namespace."""

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all free space but `leave_bytes`. Other files may grow afterwards only as far as the rest allows."""
        with (self.path / _FILL_NAME).open("ab") as file:
            while (left := self._free_bytes() - leave_bytes) > 0:
                try:
                    file.write(bytes(min(left, _BLOCK_BYTES)))
                    file.flush()
                except OSError:  # another process was faster
                    return

    def free(self) -> None:
        (self.path / _FILL_NAME).unlink(missing_ok=True)

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self.path).free

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()


@cache
def small_disks_work() -> bool:
    """Return whether this machine lets a process without privileges mount a tmpfs."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return False
    command = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
