"""One thread per piece of work: order, nesting, bounds, errors, forks, and nothing left behind."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from otpt.threads import available_threads, in_threads, one_thread


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


class Together:
    """Work that counts how many do it at the same time."""

    def __init__(self, wait_for: int = 1) -> None:
        self.now = self.most = 0
        self._changed = threading.Condition()
        self._wait_for = wait_for

    def __call__(self, _: object) -> str:
        with self._changed:
            self.now += 1
            self.most = max(self.most, self.now)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= self._wait_for, timeout=20)
        time.sleep(0.01)
        with self._changed:
            self.now -= 1
        return threading.current_thread().name


def test_results_are_in_order() -> None:
    def work(number: int) -> int:
        time.sleep(0.03 / (1 + number))  # the first ends last
        return number * number

    assert in_threads(work, range(10)) == [number * number for number in range(10)]
    assert in_threads(work, []) == []
    assert in_threads(work, [4]) == [16]


@pytest.mark.equality
@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_each_item_is_computed_by_one_thread(count: int, threads: int) -> None:
    """Also after an operator that torch would share between threads, which prepares a thread at its first use."""
    torch.set_num_threads(threads)

    def work(_: int) -> tuple[int, int]:
        before = torch.get_num_threads()
        (torch.ones(300, 300) @ torch.ones(300, 300)).exp().sum()
        return before, torch.get_num_threads()

    assert in_threads(work, range(count)) == [(1, 1)] * count
    assert torch.get_num_threads() == threads


@pytest.mark.equality
def test_the_first_operator_of_a_thread_is_not_shared() -> None:
    """Torch sets the number of a thread at its first operator, to the one that was set last anywhere."""
    torch.set_num_threads(4)  # a pool of its own, if no other test has 4
    generator = torch.Generator().manual_seed(0)
    rows, weights = torch.randn(136, 64, generator=generator), torch.randn(64, 256, generator=generator)
    cotangents = torch.randn(136, 256, generator=generator)

    def work(_: int) -> torch.Tensor:
        inner = weights.clone().requires_grad_()
        return torch.autograd.grad(rows @ inner, inner, cotangents)[0]

    with one_thread():
        expected = work(0)
    assert all(torch.equal(found, expected) for found in in_threads(work, range(12)))
    assert in_threads(lambda _: torch.get_num_threads(), range(12)) == [1] * 12


def test_within_a_piece_of_work_others_run_inline() -> None:
    def inner(_: int) -> tuple[str, int]:
        return threading.current_thread().name, available_threads()

    def outer(_: int) -> bool:
        own = threading.current_thread().name
        return in_threads(inner, range(4)) == [(own, 1)] * 4

    assert in_threads(outer, range(6)) == [True] * 6


def test_several_pieces_fill_the_cores() -> None:
    work = Together(wait_for=3)
    names = in_threads(work, range(9))
    assert work.most == 3
    assert all(name.startswith("otpt-one-thread") for name in names)


@pytest.mark.parametrize("at_once", [1, 2])
def test_at_once_is_a_bound(at_once: int) -> None:
    work = Together(wait_for=at_once)
    in_threads(work, range(8), at_once=at_once)
    assert work.most == at_once


def test_within_one_thread_several_pieces_still_fill_the_cores() -> None:
    work = Together(wait_for=3)
    with one_thread():
        assert (torch.get_num_threads(), available_threads()) == (1, 3)
        with one_thread():
            assert available_threads() == 3
            in_threads(work, range(6))
        assert (torch.get_num_threads(), available_threads()) == (1, 3)
    assert work.most == 3
    assert (torch.get_num_threads(), available_threads()) == (3, 3)


@pytest.mark.parametrize("count", [1, 5])
def test_an_error_is_raised_and_nothing_is_left_behind(count: int) -> None:
    def work(number: int) -> int:
        if number == count - 1:
            raise ValueError("no good")
        return number

    for _ in range(3):
        with pytest.raises(ValueError, match="no good"):
            in_threads(work, range(count))
    with pytest.raises(ValueError, match="no good"), one_thread():
        raise ValueError("no good")
    assert (torch.get_num_threads(), available_threads()) == (3, 3)
    assert in_threads(abs, [-1, -2, -3]) == [1, 2, 3]


def test_threads_of_the_user_keep_their_number() -> None:
    torch.set_num_threads(5)
    in_threads(abs, range(12))
    with one_thread():
        in_threads(abs, range(12))
    found: list[int] = []
    user = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    user.start()
    user.join()
    assert (torch.get_num_threads(), found) == (5, [5])


def test_several_threads_of_the_user_at_a_time() -> None:
    found: dict[int, list[int]] = {}

    def user(number: int) -> None:
        found[number] = in_threads(lambda item: number * item, range(20))

    users = [threading.Thread(target=user, args=(number,)) for number in range(4)]
    for each in users:
        each.start()
    for each in users:
        each.join(timeout=60)
    assert found == {number: [number * item for item in range(20)] for number in range(4)}


def forked(work: Callable[[], bool]) -> bool:
    """Run the work in a forked process; whether it returned true."""
    child = os.fork()
    if child == 0:
        os._exit(0 if work() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that can be forked")
multi_threaded = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@needs_fork
@multi_threaded
def test_a_forked_process_has_threads_of_its_own() -> None:
    def work() -> bool:
        together = Together(wait_for=3)
        return len(in_threads(together, range(6))) == 6 and together.most == 3

    in_threads(abs, range(6))
    assert forked(work)
    assert in_threads(abs, [-1, -2]) == [1, 2]


@pytest.mark.slow
@needs_fork
@multi_threaded
def test_threads_of_a_forked_process_may_begin_at_the_same_moment() -> None:
    """Torch replaces its thread pool after a fork without a lock: version 2 failed in one of five processes."""

    def work() -> bool:
        fine: list[int] = []
        start = time.perf_counter() + 0.005
        sys.setswitchinterval(1e-6)

        def user(number: int) -> None:
            while time.perf_counter() < start:
                pass
            if number % 2:
                in_threads(abs, range(4))
            else:
                torch.ones(300, 300).exp()
            fine.append(number)

        users = [threading.Thread(target=user, args=(number,)) for number in range(4)]
        for each in users:
            each.start()
        for each in users:
            each.join()
        return len(fine) == 4

    with one_thread():
        pass
    assert all(forked(work) for _ in range(25))
