"""Threads for the blocking parts of a broker. In a simulator, their work runs as steps of the event loop."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor


class Threads:
    """Threads of this process. Any method may be called from any thread."""

    def pool(self, name: str, count: int = 1, *, niceness: int = 0) -> Executor:
        """Return an executor of up to `count` threads, started on demand. With `count` 1, calls run in the order of
        their submission.

        With `niceness` above 0, the system prefers other threads, such as the event loop, if CPUs are scarce.
        """
        if not niceness:
            return ThreadPoolExecutor(count, thread_name_prefix=name)
        return ThreadPoolExecutor(count, thread_name_prefix=name, initializer=_give_way, initargs=(niceness,))

    def start(self, name: str, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread


def _give_way(niceness: int) -> None:
    if sys.platform != "linux":
        return
    thread_id = threading.get_native_id()
    try:
        os.setpriority(os.PRIO_PROCESS, thread_id, os.getpriority(os.PRIO_PROCESS, thread_id) + niceness)
    except OSError:
        pass  # a sandbox forbids it: slower, but correct
