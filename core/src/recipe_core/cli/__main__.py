"""The command ``recipe``, and ``python -m recipe_core.cli``; the ranks of a run are started this way.

Nothing is imported here before signals are taken care of: the imports of a run take longer than some runs.
"""

import os
import signal
import sys


def main() -> int:
    """Run the command line; return its :class:`recipe_core.errors.ExitCode`."""
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if command in ("run", "precompile"):
        from recipe_core.launch.stop import StopFlag

        with StopFlag(at_once=True) as stop:
            from recipe_core.cli.main import main as trained

            code = trained()
            stop.settle()
            return code
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not ignored
        signal.signal(signal.SIGINT, _interrupted)
    from recipe_core.cli.main import main as answered

    signal.signal(signal.SIGINT, before)
    return answered()


def _interrupted(number: int, frame: object) -> None:
    """Ctrl-C while modules are imported, where an exception would show as a traceback."""
    os.write(2, b"recipe: interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
