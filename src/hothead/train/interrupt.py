"""Ctrl-C that waits for the end of an optimiser step, so that what is saved is never half a step."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class InterruptBetweenSteps:
    """While entered, the first SIGINT only sets `is_interrupted`; a second one raises KeyboardInterrupt at once.

    Outside the main thread nothing is changed: Python delivers no signals there.
    """

    def __init__(self) -> None:
        self.is_interrupted = False
        self._previous: Any = None
        self._is_installed = False

    def __enter__(self) -> InterruptBetweenSteps:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)
            self._is_installed = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._is_installed:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_interrupted:
            raise KeyboardInterrupt
        self.is_interrupted = True
