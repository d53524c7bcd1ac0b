"""A transaction service with scripted answers and errors."""

from collections.abc import Awaitable, Callable
from typing import Any

from typing_extensions import override

from broker.errors import BrokerError
from broker.transactions.service_calls import AskedService, ServiceCall

TOLD = {
    "invalidate_transaction": "invalidated",
    "truncate_transactions": "removed",
    "list_transactions": "invalid",
}


class Scripted(AskedService):
    """Notes every call; ``answers`` are given in turn: errors are raised, functions awaited."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls: list[ServiceCall] = []

    @property
    def names(self) -> list[str]:
        """The names of all calls."""
        return [call.name for call in self.calls]

    @override
    async def ask(self, call: ServiceCall) -> Any:
        self.calls.append(call)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, BrokerError):
            raise answer
        if callable(answer):
            made: Callable[[], Awaitable[Any]] = answer
            answer = await made()
        field = TOLD.get(call.name)
        return answer if field is None else {field: answer}
