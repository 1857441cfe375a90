"""Programs in sessions of their own, so that all their processes are found and can be killed by number."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ERRORS_SHOWN_CHARACTERS = 3000


class Program:
    """`python -m module arguments...`, with its output in a file."""

    def __init__(self, module: str, arguments: list[str], log: Path) -> None:
        self.log = log
        paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        self._log_begin = log.stat().st_size if log.exists() else 0
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", module, *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    @property
    def code(self) -> int | None:
        """The exit code, None while it runs."""
        return self.process.poll()

    def members(self) -> dict[int, str]:
        """The command lines of all processes of its session."""
        found = {}
        for each in Path("/proc").iterdir():
            if each.name.isdecimal():
                with contextlib.suppress(OSError):
                    fields = (each / "stat").read_text().rpartition(")")[2].split()
                    if int(fields[3]) == self.process.pid and fields[0] != "Z":
                        found[int(each.name)] = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def kill_one(self, word: str, dice: random.Random) -> bool:
        """Kill a process of the session whose command has `word` in it, but not its first one; whether there was one."""
        chosen = sorted(
            each for each, command in self.members().items() if word in command and each != self.process.pid
        )
        if chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(dice.choice(chosen), signal.SIGKILL)
        return bool(chosen)

    def kill(self) -> None:
        """All of it at once."""
        while members := self.members():
            for each in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            if self.process.pid in members:
                self.process.wait()
        self.process.wait()

    def wait(self, timeout_s: float) -> int:
        """Its exit code; killed, it has -9, when it takes longer."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass
        self.kill()
        return self.process.returncode

    def last_words(self) -> str:
        with self.log.open("rb") as file:
            file.seek(self._log_begin)
            return file.read()[-ERRORS_SHOWN_CHARACTERS:].decode(errors="replace")
