from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.errors import UsageError
from autotune.network.runtime.runtime import Model
from tests.network.hand_made import N, reversing


def given(k: int) -> NDArray[Any]:
    return np.arange(N, dtype=np.float32).reshape(2, N // 2) + np.float32(100 * k)


def want(k: int) -> NDArray[Any]:
    return given(k).reshape(-1)[::-1] + np.float32(25)


class Slow(Model):
    """A model whose inferences begin when they are let, and fail when they are told to."""

    def __init__(self) -> None:
        super().__init__(reversing(25))
        self.entered, self.let = threading.Semaphore(0), threading.Semaphore(0)
        self.fails = False

    def run(self, inputs: Any, out: Any = None) -> dict[str, NDArray[Any]]:
        self.entered.release()
        assert self.let.acquire(timeout=60)
        if self.fails:
            raise UsageError("told to")
        return super().run(inputs, out)


async def entered(model: Slow) -> None:
    while not model.entered.acquire(blocking=False):
        await asyncio.sleep(1e-3)


def test_hundreds_of_tasks_get_their_own_outputs() -> None:
    model = Model(reversing(25), 2)

    async def one(k: int) -> None:
        out = np.empty(N, np.float32) if k % 2 else None
        found = await model.run_async({"x": given(k)}, out)
        assert np.array_equal(found["y"], want(k))
        assert out is None or found["y"] is out

    async def main() -> None:
        await asyncio.gather(*map(one, range(300)))

    asyncio.run(main())
    asyncio.run(main())  # another loop, another executor


def test_the_loop_serves_others_during_an_inference() -> None:
    model = Slow()

    async def main() -> None:
        task = asyncio.create_task(model.run_async([given(1)]))
        await entered(model)
        await asyncio.sleep(0)  # the loop is free while the thread is inside
        model.let.release()
        assert np.array_equal((await task)["y"], want(1))

    asyncio.run(main())


def test_a_cancelled_task_ends_when_its_outputs_are_whole() -> None:
    model, out = Slow(), np.zeros(N, np.float32)

    async def main() -> None:
        task = asyncio.create_task(model.run_async([given(3)], out))
        await entered(model)
        for _ in range(3):  # again and again, as impatient programs do
            task.cancel()
            await asyncio.sleep(1e-3)
            assert not task.done()
        model.let.release()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert np.array_equal(out, want(3))

    asyncio.run(main())


def test_a_cancelled_task_that_still_waits_for_a_thread_writes_nothing() -> None:
    model, out = Slow(), np.zeros(N, np.float32)

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        first = asyncio.create_task(model.run_async([given(1)]))
        await entered(model)
        second = asyncio.create_task(model.run_async([given(2)], out))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        model.let.release(2)
        assert np.array_equal((await first)["y"], want(1))

    asyncio.run(main())
    assert not model.entered.acquire(blocking=False), "the second inference was made"
    assert not out.any()


def test_a_failed_inference_of_a_cancelled_task_disturbs_nobody() -> None:
    model = Slow()
    complaints: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
        task = asyncio.create_task(model.run_async([given(1)]))
        await entered(model)
        task.cancel()
        await asyncio.sleep(0)
        model.fails = True
        model.let.release()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not complaints


def test_wrong_inputs_are_refused_as_by_run() -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match="there is no input 'z'; the input is 'x'"):
            await Model(reversing(1)).run_async({"z": given(1)})

    asyncio.run(main())
