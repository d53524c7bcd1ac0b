"""Find cycles through tracebacks: they keep the variables of frames, and so the bodies of requests."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType


@contextmanager
def no_cycle_through_a_traceback() -> Iterator[None]:
    """Collect no garbage during the block; fail if a traceback with a frame of the broker is garbage after it."""
    gc.collect()
    gc.freeze()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
        gc.collect()
        found = {_place(each) for each in gc.garbage if isinstance(each, TracebackType)}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.unfreeze()
    kept = sorted(place for place in found if "/broker/" in place)
    assert not kept, f"garbage with the frames of {kept}"


def _place(traceback: TracebackType) -> str:
    code = traceback.tb_frame.f_code
    return f"{code.co_filename}:{traceback.tb_lineno} {code.co_qualname}"
