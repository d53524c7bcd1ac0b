"""Mutants: the product without one of its guards.

A **mutant** replaces one function of the product with a function that lacks the guard, as a careless change might. The
replacement lasts while the mutant is in force; the product itself has no switch. For each mutant a test finds the
fault, so that no guard can be lost unnoticed.

    with mutants.in_force("link"): ...
    python -m broker.testing.mutants link serve --port 8080     the command line with the mutant in force
    python -m broker.testing.mutants                            the names of all mutants
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from broker.errors import BrokerError, StorageCorrupt
from broker.model import LOG_KEY_MAX, LogKey, log_key_after
from broker.storage import head as heads
from broker.storage import log as log_module
from broker.storage import log_reader, page_entries, resolve, sweep
from broker.storage import root as roots
from broker.storage.entry import Entry, encode
from broker.storage.hashchain import links_of
from broker.storage.head import ChangeVerdict, Head, PageState
from broker.storage.hold import LogHold
from broker.storage.keys import LogId, page_key, page_of, root_key, space_of
from broker.storage.last_page import Tail, next_head
from broker.storage.log import Logs
from broker.storage.marks import Marks
from broker.storage.memory.row_space import RowSpace
from broker.storage.ownchain import OwnChain, Pages
from broker.storage.ownpage import OwnPage
from broker.storage.resolve import Resolver, Tokens
from broker.storage.root import Root
from broker.testing import (
    mutants_cleanup,
    mutants_processes,
    mutants_routes,
    mutants_transactions,
)
from broker.testing.mutants_routes import Mutant, Swap, always, nothing

# Changes and their verdicts.


def _exact_head(change: Any) -> Any:
    def mutant(self: RowSpace, key: bytes, expected: bytes | None, *rest: Any, **more: Any) -> Any:
        head = self.get(key).head
        if head is not None and expected is not None and _alike(head.value, expected):
            expected = head.value
        return change(self, key, expected, *rest, **more)

    return mutant


def _alike(now: bytes, expected: bytes) -> bool:
    try:
        seen, before = heads.decode(now), heads.decode(expected)
    except StorageCorrupt:
        return False
    return (seen.epoch, seen.state) == (before.epoch, before.state)


def _taken_for_never(*verdicts: ChangeVerdict) -> Swap:
    def swap(judged: Any) -> Any:
        def mutant(seen: Head | None, entry_epoch: int | None, old: Head, new: Head) -> Any:
            verdict = judged(seen, entry_epoch, old, new)
            return ChangeVerdict.NEVER if seen is not None and verdict in verdicts else verdict

        return mutant

    return swap


def _packed_is_unknown(judged: Any) -> Any:
    def mutant(seen: Head | None, entry_epoch: int | None, old: Head, new: Head) -> Any:
        if seen is not None and seen.state is PageState.PACKED:
            seen = seen._replace(state=PageState.SEALED)
        return judged(seen, entry_epoch, old, new)

    return mutant


# Rolling and claiming.


def _seal_before_make(_: Any) -> Any:
    async def mutant(
        self: OwnPage, added: Sequence[Entry], *, messages: int, payload_bytes: int
    ) -> None:
        async with self._turn:
            self._must_go_on()
            if self.marks.lags:
                await self._marks_kept_up()
            cells = {entry.column: encode(entry) for entry in added}
            links = links_of(added, cells.values()) if self.is_chained else ()
            new = self._appended(added, messages, payload_bytes, links)
            await self._change_page(new._replace(state=PageState.OPEN), cells, added)
            if new.is_sealed and not self.done:
                try:
                    await make_and_seal(self)
                except BrokerError:
                    self.end()

    async def make_and_seal(self: OwnPage) -> None:
        page, old = self.head.next, self.page
        head = heads.following(self.head, old, self.epoch, self.head.owner, self._tokens.fresh())
        row = page_key(self.log, page)
        if not await self._resolver.swap(self._space, row, None, heads.encode(head)):
            self._fenced()
        await self._change_own_head({}, state=PageState.SEALED)
        await self._change_root(lambda root: roots.linked(root, page, head.epoch))
        self.page = page
        self.head = self._newest = head

    return mutant


def _link_every_claim(link: Any) -> Any:
    async def mutant(self: Logs, log: LogId, value: bytes | None, linked: Root) -> Root | None:
        root = None if value is None else roots.decode(value)
        if root is not None and root.page == linked.page:
            return root
        return await link(self, log, value, linked)  # type: ignore[no-any-return]

    return mutant


def _own_after_link(link: Any) -> Any:
    async def mutant(self: Logs, log: LogId, value: bytes | None, linked: Root) -> Root | None:
        return await link(self, log, value, linked) or linked

    return mutant


# Reading.


def _sealed_before_next(following: Any) -> Any:
    async def mutant(self: log_reader.LogReader, head: Head) -> LogKey | None:
        page = self._page
        if head.is_sealed or page is None or self.after >= self._through:
            return await following(self, head)  # type: ignore[no-any-return]
        rows = await self._resolver.read(
            lambda: self._resolver.table.scan(
                self._space,
                page_key(self._log, log_key_after(page)),
                page_key(self._log, LOG_KEY_MAX),
                limit=1,
            )
        )
        return page_of(rows[0][0]) if rows else None

    return mutant


def _look_at_the_root(_: Any) -> Any:
    async def mutant(self: log_reader.LogReader, page: LogKey) -> None:
        del page
        self.ended = True

    return mutant


def _leader_ends_in_its_page(walk: Any) -> Any:
    async def mutant(self: OwnChain, low: LogKey, last: LogKey) -> Pages:
        return await walk(self, low, last) or []

    return mutant


def _proof(_: Any) -> Any:
    async def mutant(self: OwnPage) -> bool:
        return not self.done

    return mutant


# Marks.


def _marks_above_marked(_: Any) -> Any:
    async def mutant(self: Logs, hold: LogHold) -> None:
        del self
        hold.marks.marked = hold.pointer

    return mutant


def _put_before_raise(index_marks: Any) -> Any:
    async def mutant(self: Logs, hold: LogHold) -> None:
        await index_marks(self, hold)
        hold.marks.close()
        hold.marks = Marks(hold.log, self.resolver, hold.pointer)

    return mutant


def _marks_before_floor(_: Any) -> Any:
    async def mutant(self: LogHold, floor: LogKey) -> None:
        if self.root.floor < floor <= self.page:
            await self._raise_root(floor=floor)

    return mutant


# The floor, and generations.


def _floor_not_tail(raise_floor: Any) -> Any:
    async def mutant(hold: LogHold, bound: LogKey) -> None:
        if hold.pointer >= bound or not hold.head.cells:
            await raise_floor(hold, bound)
            return
        await hold.marks.flush()
        floor = log_key_after(hold.pointer)
        await hold._change_root(lambda root: root._replace(floor=floor))  # noqa: SLF001

    return mutant


def _gone_stays(_: Any) -> Any:
    async def mutant(resolver: Resolver, log: LogId, page: LogKey) -> tuple[Head | None, bool]:
        return await _removed(resolver, log, page)

    return mutant


def _dead_generations_stay(turn_gone: Any) -> Any:
    async def mutant(resolver: Resolver, log: LogId, page: LogKey) -> tuple[Head | None, bool]:
        cell = await resolver.head(space_of(log), root_key(log))
        if (
            log.number is None
            and cell is not None
            and roots.decode(cell.value).generation > log.generation
        ):
            return await _removed(resolver, log, page)
        return await turn_gone(resolver, log, page)  # type: ignore[no-any-return]

    return mutant


async def _removed(resolver: Resolver, log: LogId, page: LogKey) -> tuple[Head | None, bool]:
    table, row = resolver.table, page_key(log, page)
    cell = await resolver.head(space_of(log), row)
    await resolver.read(lambda: table.delete(space_of(log), [row]))
    return None if cell is None else heads.decode(cell.value), cell is not None


def _close_tail(applies: Callable[[Tail, int | None], bool]) -> Swap:
    def swap(close_tail: Any) -> Any:
        async def mutant(
            self: Logs, log: LogId, root: Root | None, owner: str, epoch: int | None = None
        ) -> Head | None:
            tail = await self.find_tail(log, root)
            if tail is None:
                return None
            if not applies(tail, epoch):
                return await close_tail(self, log, root, owner, epoch)  # type: ignore[no-any-return]
            before = tail.before[1] if tail.before is not None else None
            tokens = self.resolver.tokens()
            return tail.head or before or next_head(log, root, tail, owner, tokens, epoch)

        return mutant

    return swap


def _finish_a_begun_deletion(claim: Any) -> Any:
    async def end_root(*_: Any) -> bool:
        return False

    async def mutant(self: Logs, *given: Any) -> Any:
        claimer: Any = copy.copy(self)
        claimer._end_root = end_root  # noqa: SLF001
        return await claim(claimer, *given)

    return mutant


def _epochs_over_generations(next_head: Any) -> Any:
    def mutant(log: LogId, root: Root | None, tail: Tail, *rest: Any) -> Any:
        if root is not None and log.number is None and tail.head is None and tail.before is None:
            root = root._replace(epoch=0)
        return next_head(log, root, tail, *rest)

    return mutant


MUTANTS: Final[Mapping[str, Mutant]] = {
    **mutants_routes.MUTANTS,
    **mutants_cleanup.MUTANTS,
    **mutants_transactions.MUTANTS,
    "exact-head": Mutant(
        "a change compares only epoch and state of the head",
        RowSpace,
        "change",
        _exact_head,
        "storm",
    ),
    "tokens": Mutant(
        "the tokens of a hold are all the same",
        Tokens,
        "fresh",
        lambda _: lambda self: self._nonce + bytes(4),
        "storm",
    ),
    "entry-epoch": Mutant(
        "the resolver ignores the epoch of the entry",
        resolve,
        "judged",
        lambda judged: (
            lambda seen, epoch, old, new: judged(
                seen, None if epoch is None else old.epoch, old, new
            )
        ),
        "same ids",
    ),
    "repeat-or-never": Mutant(
        "if the head is the expected one, the resolver answers NEVER",
        resolve,
        "judged",
        _taken_for_never(ChangeVerdict.REPEAT),
        "storm",
    ),
    "stale-is-not-never": Mutant(
        "if the head is another one, the resolver answers NEVER",
        resolve,
        "judged",
        _taken_for_never(ChangeVerdict.STALE),
        "storm",
    ),
    "gone-is-unknown": Mutant(
        "if the page is gone, the resolver answers NEVER",
        resolve,
        "judged",
        _taken_for_never(ChangeVerdict.UNKNOWN),
    ),
    "packed-is-unknown": Mutant(
        "if a packed page lacks the append, the resolver answers NEVER",
        resolve,
        "judged",
        _packed_is_unknown,
    ),
    "attributes": Mutant(
        "joined small entries lose the keys and headers of their messages",
        page_entries,
        "join",
        always(b""),
    ),
    "seal-before-make": Mutant(
        "a leader makes the next page before it seals its own",
        OwnPage,
        "append",
        _seal_before_make,
        "moves",
    ),
    "link": Mutant(
        "the root never names a later page",
        roots,
        "linked",
        lambda _: lambda root, _page, epoch: root._replace(epoch=epoch),
        "floor",
    ),
    "link-every-claim": Mutant(
        "a claim changes the root only if the root names another page",
        Logs,
        "_link",
        _link_every_claim,
    ),
    "own-after-link": Mutant("a claim ignores a failed link", Logs, "_link", _own_after_link),
    "sealed-before-next": Mutant(
        "a reader goes on to the next page from an open page",
        log_reader.LogReader,
        "_following",
        _sealed_before_next,
        "storm",
    ),
    "up-to-the-pointer": Mutant(
        "a reader does not compare a page in pieces with its pointer",
        log_reader,
        "is_short",
        always(value=False),
        "storm",
    ),
    "look-at-the-root": Mutant(
        "a reader takes an absent, gone or empty page for the end",
        log_reader.LogReader,
        "_look_at_root",
        _look_at_the_root,
        "zombies",
    ),
    "leader-ends-in-its-page": Mutant(
        "a leader's read may end anywhere",
        OwnChain,
        "_walk",
        _leader_ends_in_its_page,
        "edits",
    ),
    "proof": Mutant(
        "a leader answers polls from memory, without a proof", OwnPage, "proof", _proof, "moves"
    ),
    "last-step": Mutant(
        "a rollback omits the last change of its own head",
        LogHold,
        "_last_change",
        nothing,
        "edits",
    ),
    "marks-above-marked": Mutant(
        "a claim does not read the headers above ``marked``",
        Logs,
        "_index_marks",
        _marks_above_marked,
        "marks",
    ),
    "put-before-raise": Mutant(
        "a claim raises ``marked`` before it stores the marks that it found",
        Logs,
        "_index_marks",
        _put_before_raise,
        "marks",
    ),
    "marks-before-floor": Mutant(
        "the floor rises above marks that are not stored",
        LogHold,
        "raise_floor",
        _marks_before_floor,
        "marks",
    ),
    "floor-not-tail": Mutant(
        "the floor rises above the tail", sweep, "raise_floor", _floor_not_tail, "floor"
    ),
    "gone-stays": Mutant(
        "the sweeper removes heads of pages below the floor", sweep, "turn_gone", _gone_stays
    ),
    "dead-generations-stay": Mutant(
        "the sweeper removes heads of a dead generation",
        sweep,
        "turn_gone",
        _dead_generations_stay,
    ),
    "close-at-delete": Mutant(
        "a deletion deletes the root, and does not close the tail",
        Logs,
        "close_tail",
        _close_tail(lambda _, epoch: epoch is None),
        "generations",
    ),
    "finish-a-begun-deletion": Mutant(
        "a claim that meets a closed tail retries, and does not finish the deletion",
        Logs,
        "claim",
        _finish_a_begun_deletion,
        "generations",
    ),
    "epochs-over-generations": Mutant(
        "the first page of a generation has epoch 1",
        log_module,
        "next_head",
        _epochs_over_generations,
        "generations",
    ),
    "absent-made-closed": Mutant(
        "an absent tail counts as closed",
        Logs,
        "close_tail",
        _close_tail(lambda tail, _: tail.head is None),
        "payloads",
    ),
    "close-at-publish": Mutant(
        "a leader publishes a reference, and does not close the tail",
        Logs,
        "close_tail",
        _close_tail(lambda _, epoch: epoch is not None),
        "payloads",
    ),
}

NAMES: Final = frozenset({*MUTANTS, *mutants_processes.MUTANTS})
"""All mutants, also those of mutants_processes.py, which replace several functions each."""


@contextlib.contextmanager
def in_force(name: str) -> Iterator[None]:
    """Put a mutant in force inside the block. Raises KeyError if there is no such mutant."""
    if name in mutants_processes.MUTANTS:
        with mutants_processes.MUTANTS[name].patch():
            yield
        return
    mutant = MUTANTS[name]
    original = getattr(mutant.owner, mutant.attribute)
    setattr(mutant.owner, mutant.attribute, mutant.swap(original))
    try:
        yield
    finally:
        setattr(mutant.owner, mutant.attribute, original)


def main() -> None:
    """Run the command line with a mutant in force: ``NAME arguments…``."""
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        does = {name: mutant.does for name, mutant in MUTANTS.items()}
        does |= {name: mutant.does for name, mutant in mutants_processes.MUTANTS.items()}
        for name, text in does.items():
            sys.stdout.write(f"{name:26}{text}\n")
        sys.exit(len(sys.argv) > 1)
    from broker.cli import main as command_line  # noqa: PLC0415 - Only this needs its packages.

    name = sys.argv.pop(1)
    sys.argv[0] = "broker"
    with in_force(name):
        command_line()


if __name__ == "__main__":
    main()
