"""Stack the effects of several faults on one value: each fault takes its own effect back, in any order.

If a fault saved the value before it and restored it at its end, it could restore the effect of another fault that had
ended already. With layers this can't happen::

    storms = Layers[float]()
    first, second = storms.add(0.2), storms.add(0.9)
    storms.top                              0.9
    first()
    storms.top                              0.9
    second()
    storms.top                              None
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Layer = TypeVar("Layer")


class Layers(Generic[Layer]):
    """The layers that were added and not taken back yet, in the order of the calls."""

    def __init__(self) -> None:
        """Begin without layers."""
        self._layers: dict[int, Layer] = {}
        self._count = 0

    def add(self, layer: Layer) -> Callable[[], None]:
        """Put a layer on top. The returned function takes it back; further calls of it do nothing."""
        self._count += 1
        number = self._count
        self._layers[number] = layer

        def take_back() -> None:
            self._layers.pop(number, None)

        return take_back

    @property
    def all(self) -> list[Layer]:
        """All layers, the lowest first."""
        return list(self._layers.values())

    @property
    def top(self) -> Layer | None:
        """The layer that was added last; None: there is none."""
        return next(reversed(self._layers.values()), None)

    def clear(self) -> None:
        """Take all layers back."""
        self._layers.clear()
