"""The complete search: all orders of a small configuration, with a given number of faults and stale answers.

A state is a few small numbers: the rows, the calls in flight, the ghost, the older rows that a stale answer may show,
the faults and the stale answers left, and the point of each program. Each part is **interned**: its value is kept once,
and its place in a list is its name. So states are hashed and compared as numbers. The results for parts of states are
computed once and then looked up:

    moves    (rows, point)          the call of one node: every possible answer, and the rows after it
    ghosts   (ghost, move)          the judged ghost after the move
    late     (in flight, call)      the calls in flight with one more

The **point** of a program is the sequence of its answers so far, as a trie. A generator cannot be copied. The first
answer at a point uses the generator; for every other answer the program is run again from its start.
The search keeps only a 64-bit hash of each visited state. Among ten million states, the probability that two share a
hash is one in four hundred thousand. After a violation the search runs again and keeps the path to every state, so
that it can print the story.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.model.adversary import Told, alone
from tests.model.chain import Node
from tests.model.check import EMPTY, Ghost, Violation, after_write, answered, stale_answer
from tests.model.configs import SMALL
from tests.model.interned import Interned
from tests.model.node import program
from tests.model.store import START, WRITES, Call, Program, Row, Rows, keys_of, read, write

ALONE_EVERY = 37
"""One of so many sets of rows is judged with a fresh node alone."""

Past = frozenset[tuple[Any, Row | None]]
NO_PAST: Past = frozenset()


Answers = tuple[Any, ...]


class Point(NamedTuple):
    """The point of a program: its next call, and its answers to clients since the last call."""

    pid: int
    call: Call | None
    events: tuple[Call, ...]
    answers: Answers


class Move(NamedTuple):
    """One possible step: the call of a node, or a call in flight that takes effect."""

    number: int
    rows: int
    point: int
    written: Call | None
    events: tuple[Call, ...]
    pid: int
    late: int | None
    fault: int
    waits: tuple[str, ...]
    step: Told


State = tuple[int, int, int, int, int, int, tuple[int, ...]]
"""rows, late, ghost, past, faults and stale answers left, points."""


@dataclass
class Outcome:
    """The result of a search. ``story``: the steps to the violation."""

    states: int = 0
    is_complete: bool = False
    violation: str = ""
    story: list[Told] = field(default_factory=list)


class Search:
    """The search, with the results for parts of states, each computed once."""

    def __init__(self, name: str, faults: int, stales: int, *, told: bool = False) -> None:
        self.config = SMALL[name]
        self.rows, self.late, self.ghosts = Interned(), Interned(), Interned()
        self.pasts, self.calls = Interned(), Interned()
        self.points: list[Point] = []
        self._runs: list[Program[None] | None] = []
        self.has_faults, self.has_stales = faults > 0, stales > 0
        self.move_count = 0
        self._next: dict[tuple[int, Any], int] = {}
        self._moves: dict[tuple[int, int], list[Move]] = {}
        self._stale_moves: dict[tuple[int, int, int], list[Move]] = {}
        self._late_moves: dict[tuple[int, int], Move | None] = {}
        self._after: dict[tuple[int, int], int] = {}
        self._written: dict[tuple[int, int, Call], Ghost] = {}
        self._more: dict[tuple[int, int], int] = {}
        self._later: dict[tuple[int, int, int], int] = {}
        self.ways: dict[State, tuple[State, Told]] | None = {} if told else None
        self.seen: set[int] = set()
        self.stack: list[State] = []
        self.now: State | None = None
        self.step: Told | None = None

    # --- Parts of states -------------------------------------------------------------------------

    def rows_place(self, rows: Rows) -> int:
        return self.rows.place(frozenset(rows.items()), rows)

    def start(self, faults: int, stales: int) -> State:
        count = len(self.config.scripts)
        points = [self.begun(pid) for pid in range(count)]
        ghost = EMPTY
        for pid, point in enumerate(points):
            for event in self.points[point].events:
                ghost = answered(START, ghost, event, pid)
        rows, late = self.rows_place(dict(START)), self.late.place((), ())
        past, place = self.pasts.place(NO_PAST), self.ghosts.place(ghost)
        return rows, late, place, past, faults, stales, tuple(points)

    def begun(self, pid: int) -> int:
        """Return the point of a program's first call."""
        return self.made(pid, (), self.fresh(pid), None)

    def fresh(self, pid: int) -> Program[None]:
        _, clocks, page_entries = self.config
        return program(Node(pid, clocks[pid], page_entries), self.config.scripts[pid])

    def made(self, pid: int, answers: Answers, run: Program[None], answer: Any) -> int:
        """Give a program its next answer, and return its new point."""
        events: list[Call] = []
        call: Call | None
        try:
            call = run.send(answer)
            while call[0] == "ev":
                events.append(call[1:])
                call = run.send(None)
        except StopIteration:
            call = None
        self.points.append(Point(pid, call, tuple(events), answers))
        self._runs.append(run)
        return len(self.points) - 1

    def run_again(self, pid: int, answers: Answers) -> Program[None]:
        """Return a new generator that has consumed these answers."""
        run = self.fresh(pid)
        for answer in (None, *answers):
            while run.send(answer)[0] == "ev":
                answer = None  # noqa: PLW2901 - An answer to a client has none.
        return run

    def point_after(self, point: int, answer: Any) -> int:
        after = self._next.get((point, answer))
        if after is None:
            pid, _, _, answers = self.points[point]
            run, self._runs[point] = self._runs[point], None
            if run is None:
                run = self.run_again(pid, answers)
            after = self.made(pid, (*answers, answer), run, answer)
            self._next[point, answer] = after
        return after

    # --- Moves -----------------------------------------------------------------------------------

    def move(
        self,
        rows: int,
        point: int,
        answer: Any,
        written: Call | None = None,
        late: Call | None = None,
        fault: int = 0,
        say: Any = None,
    ) -> Move:
        before = self.points[point]
        after = self.point_after(point, answer)
        self.move_count += 1
        return Move(
            self.move_count,
            rows,
            after,
            written,
            self.points[after].events,
            before.pid,
            None if late is None else self.calls.place(late),
            fault,
            (),
            (before.pid, before.call, answer if say is None else say),
        )

    def moves(self, rows: int, point: int) -> list[Move]:
        """Return the possible results of a node's call, without stale answers."""
        call = self.points[point].call
        if call is None:
            return []
        if call[0] == "wait":
            return [self.move(rows, point, None)._replace(waits=call[1])]
        if call[0] not in WRITES:
            return [self.move(rows, point, read(self.rows.values[rows], call))]
        return self.writes(rows, point, call)

    def writes(self, rows: int, point: int, call: Call) -> list[Move]:
        after = dict(self.rows.values[rows])
        answer, changed = write(after, call)
        place, written = (self.rows_place(after), call) if changed else (rows, None)
        moves = [self.move(place, point, answer, written)]
        if not self.has_faults:
            return moves
        if answer is True:
            said = "applied, and False said"
            moves.append(self.move(place, point, False, written, None, 1, said))
            said = "True, and perhaps once more"
            moves.append(self.move(place, point, True, written, call, 1, said))
        said = "error, perhaps later"
        moves.append(self.move(rows, point, "error", None, call, 1, said))
        if call[0] == "change":
            said = "deadline, perhaps later"
            moves.append(self.move(rows, point, "deadline", None, call, 1, said))
        return moves

    def stale_moves(self, rows: int, point: int, past: int) -> list[Move]:
        """Return the moves with the stale answers that a call may get."""
        call = self.points[point].call
        if call is None:
            return []
        older = [row for key, row in self.pasts.values[past] if key == call[1]]
        if call[0] == "change":
            _, changed = write(dict(self.rows.values[rows]), call)
            if changed and any((row.head if row else None) != call[2] for row in older):
                return [self.move(rows, point, False, None, None, 0, "stale False")]
            return []
        if call[0] not in {"get", "cells"}:
            return []
        now = read(self.rows.values[rows], call)
        answers = [read({call[1]: row} if row else {}, call) for row in older]
        return [
            self.move(rows, point, answer, None, None, 0, ("stale", answer))
            for answer in dict.fromkeys(answers)
            if answer != now
        ]

    def late_move(self, rows: int, call: int) -> Move | None:
        """Return the move of a call in flight that takes effect now; None: it has no effect."""
        late = self.calls.values[call]
        after = dict(self.rows.values[rows])
        _, changed = write(after, late)
        if not changed:
            return None
        self.move_count += 1
        step = ("late", late, True)
        return Move(self.move_count, self.rows_place(after), -1, late, (), -1, None, 0, (), step)

    # --- Results of moves -------------------------------------------------------------------------

    def ghost_after(self, ghost: int, rows: int, move: Move, stale: bool = False) -> int:
        """Judge a move, and return the ghost after it."""
        known: Ghost = self.ghosts.values[ghost]
        if stale:
            known = stale_answer(known, move.pid)
        after = self.rows.values[move.rows]
        if move.written is not None:
            key = (ghost, rows, move.written)
            if key not in self._written:
                before = self.rows.values[rows]
                self._written[key] = after_write(before, after, known, move.written)
            known = self._written[key]
        for event in move.events:
            known = answered(after, known, event, move.pid)
        return self.ghosts.place(known)

    def late_and(self, late: int, call: int) -> int:
        """Return the calls in flight with one more."""
        key = late, call
        if key not in self._more:
            self._more[key] = self.late.place(tuple(sorted((*self.late.values[late], call))))
        return self._more[key]

    def late_without(self, late: int, at: int) -> int:
        calls = self.late.values[late]
        return self.late.place(calls[:at] + calls[at + 1 :])

    def past_after(self, past: int, rows: int, move: Move) -> int:
        """Return the older rows that a stale answer may show after a write."""
        key = past, rows, move.number
        if move.written is not None and key not in self._later:
            older: Past = self.pasts.values[past]
            call, before = move.written, self.rows.values[rows]
            if call[0] == "change" and call[5]:
                older = frozenset(version for version in older if version[0] != call[1])
            else:
                keys = (k for k in keys_of(call) if k[0] != "M")
                older |= frozenset((k, before.get(k)) for k in keys)
            self._later[key] = self.pasts.place(older)
        return past if move.written is None else self._later[key]

    # --- The search ------------------------------------------------------------------------------

    def push(self, state: State) -> None:
        key = hash(state)
        if key in self.seen:
            return
        self.seen.add(key)
        self.stack.append(state)
        if self.ways is not None and self.now is not None and self.step is not None:
            self.ways[state] = (self.now, self.step)

    def take(
        self, state: State, move: Move, points: tuple[int, ...], late: int, stale: int
    ) -> None:
        """Apply a move to a state."""
        rows, _, ghost, past, faults, stales, _ = state
        self.step = move.step
        stales -= stale
        if stale:
            ghost = self.ghost_after(ghost, rows, move, stale=True)
        elif move.written is not None or move.events:
            key = ghost, move.number
            after = self._after.get(key)
            if after is None:
                after = self._after[key] = self.ghost_after(ghost, rows, move)
            ghost = after
        if self.has_stales:
            past = self.past_after(past, rows, move) if stales else 0
        self.push((move.rows, late, ghost, past, faults - move.fault, stales, points))

    def expand(self, state: State) -> None:
        """Apply every possible move to a state. Raises Violation."""
        rows, late, ghost, past, faults, stales, points = state
        for at, call in enumerate(self.late.values[late]):
            if (rows, call) not in self._late_moves:
                self._late_moves[rows, call] = self.late_move(rows, call)
            move = self._late_moves[rows, call]
            if move is not None:
                self.take(state, move, points, self.late_without(late, at), 0)
        for pid, point in enumerate(points):
            moves = self._moves.get((rows, point))
            if moves is None:
                moves = self._moves[rows, point] = self.moves(rows, point)
            for move in moves:
                if move.fault > faults or (move.waits and self.waits(ghost, move.waits)):
                    continue
                after = (*points[:pid], move.point, *points[pid + 1 :])
                in_flight = late if move.late is None else self.late_and(late, move.late)
                self.take(state, move, after, in_flight, 0)
            if stales:
                self.expand_stale(state, pid, past)

    def waits(self, ghost: int, labels: tuple[str, ...]) -> bool:
        return not self.ghosts.values[ghost].done.issuperset(labels)

    def expand_stale(self, state: State, pid: int, past: int) -> None:
        rows, late, _, _, _, _, points = state
        key = rows, points[pid], past
        if key not in self._stale_moves:
            self._stale_moves[key] = self.stale_moves(*key)
        for move in self._stale_moves[key]:
            after = (*points[:pid], move.point, *points[pid + 1 :])
            self.take(state, move, after, late, 1)

    def go(self, state: State, seconds: float) -> Outcome:
        outcome, end, judged = Outcome(), time.monotonic() + seconds, set()
        self.push(state)
        try:
            while self.stack:
                self.now = state = self.stack.pop()
                rows = state[0]
                outcome.states += 1
                if rows % ALONE_EVERY == 0 and rows not in judged:
                    judged.add(rows)
                    self.step = ("alone", ("alone",), None)
                    alone(self.rows.values[rows], self.ghosts.values[state[2]])
                self.expand(state)
                if outcome.states % 256 == 0 and time.monotonic() > end:
                    return outcome
        except Violation as violation:
            outcome.violation, outcome.story = str(violation), self.story()
            return outcome
        outcome.is_complete = True
        return outcome

    def story(self) -> list[Told]:
        """Return the steps to the present state, if they were kept."""
        steps, state = [self.step] if self.step else [], self.now
        while self.ways and state in self.ways:
            state, step = self.ways[state]
            steps.append(step)
        return steps[::-1]


def complete(
    name: str, faults: int = 0, stales: int = 0, *, seconds: float = float("inf")
) -> Outcome:
    """Search a small configuration completely, or for ``seconds``."""
    search = Search(name, faults, stales)
    outcome = search.go(search.start(faults, stales), seconds)
    if outcome.violation:
        search = Search(name, faults, stales, told=True)
        outcome = search.go(search.start(faults, stales), float("inf"))
    return outcome
