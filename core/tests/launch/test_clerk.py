"""A thread that does one thing again and again: what is asked for is done after that, and a last time at the end."""

from __future__ import annotations

import threading

from recipe_core.launch.watch.clerk import Clerk, all_did, all_finished

LONG = 120.0
"""Seconds that nobody waits for here."""


def test_what_is_asked_for_is_done_from_begin_to_end_after_that() -> None:
    begun, go_on, done = threading.Semaphore(0), threading.Semaphore(0), list[int]()

    def job() -> None:
        begun.release()
        go_on.acquire()
        done.append(len(done))

    clerk = Clerk("clerk", job, LONG)
    clerk.start()
    assert begun.acquire(timeout=LONG)  # the first time has begun already
    number = clerk.ask()
    go_on.release()
    assert not clerk.did(number, 0.0)
    assert begun.acquire(timeout=LONG)
    assert not clerk.did(number, 0.01)
    go_on.release()
    assert clerk.did(number, LONG)
    assert done == [0, 1]
    go_on.release()
    all_finished([clerk], LONG)
    assert done == [0, 1, 2]


def test_one_that_is_stuck_keeps_nobody() -> None:
    free, stuck = Clerk("free", lambda: None, LONG), Clerk("stuck", threading.Event().wait, LONG)  # type: ignore[arg-type]
    for clerk in (free, stuck):
        clerk.start()
    assert all_did([free], LONG)
    assert not all_did([free, stuck], 0.1)
    all_finished([free, stuck], 0.1)
