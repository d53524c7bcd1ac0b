"""What several faults do to one thing at the same time: each takes back its own part, in any order.

A fault that remembers a value and puts it back would put back what another fault has taken away
meanwhile::

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
    """What was added and not taken back yet, in the order in which it was added."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._layers: dict[int, Layer] = {}
        self._count = 0

    def add(self, layer: Layer) -> Callable[[], None]:
        """Put something on top; calling what is returned takes it back, once or more often."""
        self._count += 1
        number = self._count
        self._layers[number] = layer

        def take_back() -> None:
            self._layers.pop(number, None)

        return take_back

    @property
    def all(self) -> list[Layer]:
        """What there is, the lowest first."""
        return list(self._layers.values())

    @property
    def top(self) -> Layer | None:
        """What was added last of what there is."""
        return next(reversed(self._layers.values()), None)

    def clear(self) -> None:
        """Take everything back."""
        self._layers.clear()
