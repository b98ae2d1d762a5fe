"""Ask a run to stop at the next good moment."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

# Ctrl-C; what a batch system sends before it kills; the terminal was closed; what Slurm is told to send some minutes
# earlier (--signal). Looked up by name: not every platform has all of them.
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]


class StopFlag:
    """Within the block, a signal to stop is noted instead of ending the process.

    ``signal`` is the name of the first one that came, or None; the training loop looks at it between two steps,
    together with the other ranks. The second Ctrl-C raises KeyboardInterrupt at once. A signal that the process was
    told to ignore (nohup) stays ignored, and outside the main thread, where Python takes no handlers, the flag stays
    None. Leaving the block brings the earlier handlers back.
    """

    def __init__(self) -> None:
        self.signal: str | None = None
        self._interrupts = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            # None stands for a handler that was not set from Python and cannot be set again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or signal.Signals(number).name
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1:
                raise KeyboardInterrupt
