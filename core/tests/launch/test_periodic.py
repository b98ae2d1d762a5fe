"""A thread that runs a job periodically: a request runs it afterwards, and it runs a last time at the end."""

from __future__ import annotations

import threading

from recipe_core.launch.watch.periodic import PeriodicThread, finish_all, run_all_now

LONG = 120.0
"""Seconds that no test waits for."""


def test_a_request_is_met_by_a_run_that_begins_after_it() -> None:
    begun, go_on, done = threading.Semaphore(0), threading.Semaphore(0), list[int]()

    def job() -> None:
        begun.release()
        go_on.acquire()
        done.append(len(done))

    thread = PeriodicThread("periodic", job, LONG)
    thread.start()
    assert begun.acquire(timeout=LONG)  # the first run has begun already
    number = thread.request()
    go_on.release()
    assert not thread.wait_for(number, 0.0)
    assert begun.acquire(timeout=LONG)
    assert not thread.wait_for(number, 0.01)
    go_on.release()
    assert thread.wait_for(number, LONG)
    assert done == [0, 1]
    go_on.release()
    finish_all([thread], LONG)
    assert done == [0, 1, 2]


def test_a_stuck_job_blocks_no_caller() -> None:
    free, stuck = PeriodicThread("free", lambda: None, LONG), PeriodicThread("stuck", threading.Event().wait, LONG)  # type: ignore[arg-type]
    for thread in (free, stuck):
        thread.start()
    assert run_all_now([free], LONG)
    assert not run_all_now([free, stuck], 0.1)
    finish_all([free, stuck], 0.1)
