"""Threads with lower priority have it, without an effect on other threads."""

import os
import sys
import threading

import pytest

from pybroker.runtime.threads import Threads


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have the priority of their process")
def test_threads_of_a_pool_give_way_and_nobody_else_does() -> None:
    before = priority()
    with Threads().pool("polite", niceness=3) as polite, Threads().pool("plain") as plain:
        assert polite.submit(priority).result() == min(before + 3, 19)
        assert plain.submit(priority).result() == before
    assert priority() == before


def test_threads_work_where_priorities_are_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse, raising=False)
    with Threads().pool("polite", niceness=3) as pool:
        assert pool.submit(int, "7").result() == 7
