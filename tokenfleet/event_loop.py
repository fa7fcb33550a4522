"""The event loop of a process."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_SWITCH_S = 0.0005
"""How late the loop, each time it has waited for something, takes the interpreter back from a
thread that works on a large body; Python's own 5 ms add up to a second for a small chat."""


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run it to its end.

    On uvloop where it is installed: an event loop in C halves the cost of a hop."""
    sys.setswitchinterval(_SWITCH_S)
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
