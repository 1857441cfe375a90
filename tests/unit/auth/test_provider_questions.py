"""Questions to the authorization provider: answers from memory, cancellation and limits."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.auth.provider_questions import ProviderQuestions
from pybroker.errors import BrokerError


async def test_answer_from_memory_takes_no_iteration_of_the_event_loop() -> None:
    questions, iterations = ProviderQuestions("P", 10, 10), 0

    def count() -> None:
        nonlocal iterations
        iterations += 1
        asyncio.get_running_loop().call_soon(count)

    async def at_once() -> str:
        return "answer"

    asyncio.get_running_loop().call_soon(count)
    assert [await questions.ask("role", at_once()) for _ in range(100)] == ["answer"] * 100
    assert iterations == 0


async def test_question_may_use_timeouts_and_tasks_of_its_own() -> None:
    async def remote() -> int:
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            found = group.create_task(asyncio.sleep(0, 7))
            await asyncio.sleep(0)
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return found.result()
        return 0

    assert await ProviderQuestions("P", 10, 10).ask("role", remote()) == 7


async def test_cancelled_caller_cancels_its_question() -> None:
    questions, ended = ProviderQuestions("P", 10, 10), asyncio.Event()

    async def remote() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    asking = asyncio.ensure_future(questions.ask("role", remote()))
    await asyncio.sleep(0)
    assert questions.pending == 1
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert ended.is_set()
    assert questions.pending == 0


async def test_question_above_the_limit_is_ended_before_its_error() -> None:
    questions, ended = ProviderQuestions("P", 10, 1), []

    async def remote(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # for example to close a connection
            ended.append(name)

    first = asyncio.ensure_future(questions.ask("role", remote("first")))
    await asyncio.sleep(0)
    with pytest.raises(BrokerError, match="authorizationMaxPendingQuestions"):
        await questions.ask("role", remote("second"))
    assert ended == ["second"]
    assert questions.failures["TOO_MANY_PENDING"] == 1
    first.cancel()
    await asyncio.wait([first])
