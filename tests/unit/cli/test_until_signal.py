"""A signal ends waits, and lets what is no wait come to its end."""

import asyncio
import os
import signal

import pytest
from tests.support.waiting import until

from pybroker.cli.binary_client import UntilSignal
from pybroker.cli.exit_codes import Interrupted


async def never() -> None:
    await asyncio.Event().wait()


async def test_a_signal_ends_a_wait_and_those_that_would_follow() -> None:
    with UntilSignal() as signals:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted) as interrupted:
            await signals.wait(never())
        assert interrupted.value.exit_code == 128 + signal.SIGTERM
        with pytest.raises(Interrupted):
            await signals.wait(never())


async def test_a_signal_outside_of_a_wait_is_told_at_the_next_one_and_a_second_one_ends_anything() -> None:
    with UntilSignal() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        await until(lambda: signals.number)  # as an acknowledgement on its way, which is not to be cut off
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(asyncio.CancelledError):
            await never()
        with pytest.raises(Interrupted):
            signals.check()


async def test_a_cancellation_by_others_is_no_signal() -> None:
    with UntilSignal() as signals:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await signals.wait(never())
        assert signals.number is None
