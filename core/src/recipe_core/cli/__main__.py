"""The command ``recipe``, and ``python -m recipe_core.cli``; the ranks of a run are started this way.

Nothing is imported here before signals are taken care of: the imports of a run take longer than some runs.
"""

import _signal as signal  # type: ignore[import-not-found]  # the public module makes enums first, in milliseconds
import os
import sys


def main() -> int:
    """Run the command line; return its :class:`recipe_core.errors.ExitCode`."""
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if command in ("run", "precompile"):
        return _run()
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not ignored
        signal.signal(signal.SIGINT, _interrupted)
    from recipe_core.cli.main import main as answered

    signal.signal(signal.SIGINT, before)
    return answered()


def _run() -> int:
    """Run a command that signals may stop: at first by :func:`stopped`, then by a flag, whose imports take longer."""
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")  # as stop.py has them
    signals = {getattr(signal, name): name for name in names if hasattr(signal, name)}
    settled = False

    def stopped(number: int, frame: object) -> None:
        if not settled:
            os.write(2, f"recipe: stopped by {signals[number]} before anything was begun\n".encode())
            os._exit(75)  # ExitCode.STOPPED

    for number in signals:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stopped)
    from recipe_core.launch.stop import StopFlag

    with StopFlag(at_once=True) as stop:
        from recipe_core.cli.main import main as trained

        try:
            code = trained()
            stop.settle()
        finally:
            settled = True
    return code


def _interrupted(number: int, frame: object) -> None:
    """Ctrl-C while modules are imported, where an exception would show as a traceback."""
    os.write(2, b"recipe: interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
