"""Entry point of ``recipe`` and ``python -m recipe_core.cli``; the ranks of a run start here, too.

Signal handlers are installed before anything is imported: the imports of a run take longer than some runs.
"""

import _signal as signal  # type: ignore[import-not-found]  # the public module builds enums first, which takes milliseconds
import os
import sys


def main() -> int:
    """Run the command line; return its :class:`recipe_core.errors.ExitCode`."""
    command = next((argument for argument in sys.argv[1:] if not argument.startswith("-")), "")
    if command in ("run", "precompile"):
        return _run()
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not ignored
        signal.signal(signal.SIGINT, _interrupted)
    from recipe_core.cli.main import main as run_command

    signal.signal(signal.SIGINT, before)
    return run_command()


def _run() -> int:
    """Run a command that stops on signals: at first by :func:`stopped`, then by a flag, whose imports take longer."""
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")  # the same as in stop.py
    signals = {getattr(signal, name): name for name in names if hasattr(signal, name)}
    finished = False

    def stopped(number: int, frame: object) -> None:
        if not finished:
            os.write(2, f"recipe: stopped by {signals[number]} before anything was begun\n".encode())
            os._exit(75)  # ExitCode.STOPPED

    for number in signals:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stopped)
    from recipe_core.launch.stop import StopFlag, StopMode

    with StopFlag(StopMode.EXIT) as stop:
        from recipe_core.cli.main import main as run_command

        try:
            code = run_command()
            stop.mode = StopMode.IGNORE
        finally:
            finished = True
    return code


def _interrupted(number: int, frame: object) -> None:
    """Handle Ctrl-C during imports, where KeyboardInterrupt would print a traceback."""
    os.write(2, b"recipe: interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
