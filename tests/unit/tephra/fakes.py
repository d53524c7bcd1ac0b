"""A transaction service with scripted answers and errors."""

from collections.abc import Awaitable, Callable
from typing import Any

from typing_extensions import override

from broker.errors import BrokerError
from broker.transactions.tephra_service import Serving


class Scripted(Serving):
    """Notes every call; ``answers`` are given in turn: errors are raised, functions awaited."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[Any, ...]] = []
        self.callers: list[str] = []

    async def _next(self, *call: Any) -> Any:
        self.calls.append(call)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, BrokerError):
            raise answer
        if callable(answer):
            made: Callable[[], Awaitable[Any]] = answer
            return await made()
        return answer

    @override
    async def start(self, **named: Any) -> Any:
        self.callers.append(named.pop("caller"))
        return await self._next("start", named)

    @override
    async def can_commit(self, transaction_id: int, changes: Any) -> None:
        await self._next("can_commit", transaction_id, sorted(changes))

    @override
    async def commit(self, transaction_id: int, write_pointer: int | None = None) -> None:
        await self._next("commit", transaction_id, write_pointer)

    @override
    async def abort(self, transaction_id: int) -> None:
        await self._next("abort", transaction_id)

    @override
    async def invalidate(self, transaction_id: int) -> Any:
        return await self._next("invalidate", transaction_id)

    @override
    async def checkpoint(self, transaction_id: int) -> Any:
        return await self._next("checkpoint", transaction_id)

    @override
    async def snapshot(self, deadline: float | None = None) -> Any:
        return await self._next("snapshot")

    @override
    async def tephra_snapshot(self) -> Any:
        return await self._next("tephra_snapshot")

    @override
    async def truncate_invalid(self, ids: Any) -> Any:
        return await self._next("truncate_invalid", sorted(ids))

    @override
    async def truncate_invalid_before(self, before_ms: int) -> Any:
        return await self._next("truncate_invalid_before", before_ms)

    @override
    async def invalid_count(self) -> Any:
        return await self._next("invalid_count")

    @override
    async def reset(self) -> None:
        await self._next("reset")
