"""Where threads come from: a part that blocks asks for one here, and whoever builds a broker says what it is.

A test or a simulator gives others, in which what a thread would do is a step of its loop. Blocking work that no pool is kept for
goes to the loop's own (`asyncio.to_thread`), so that is the loop's to say.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor


class Threads:
    """Threads of this process. Any method may be called from any thread."""

    def pool(self, name: str, count: int = 1, *, niceness: int = 0) -> Executor:
        """Up to `count` threads, made when they are needed; with one, work is done in the order in which it was handed over.

        With `niceness` the system lets others of this process, the loop above all, go first where processors are short.
        """
        if not niceness:
            return ThreadPoolExecutor(count, thread_name_prefix=name)
        return ThreadPoolExecutor(count, thread_name_prefix=name, initializer=_give_way, initargs=(niceness,))

    def start(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """A thread that does `work`, at once; the process does not wait for it when it ends."""
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread


def _give_way(niceness: int) -> None:
    """Of the calling thread, where threads have a priority of their own: Linux."""
    if sys.platform != "linux":
        return
    thread_id = threading.get_native_id()
    try:
        os.setpriority(os.PRIO_PROCESS, thread_id, os.getpriority(os.PRIO_PROCESS, thread_id) + niceness)
    except OSError:
        pass  # a sandbox that forbids it: slower, not wrong
