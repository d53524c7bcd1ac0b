"""Checkers: what a history shows to be wrong.

``check`` judges a history that is in memory, ``Judge`` one of any length, line by line and by segments.
Both are one pass: every payload is unique and the order of the log is visible, so nothing has to be
searched for. A verdict is *valid* only if there was something to check; it is *unknown* for a history
without acknowledged writes, or if a topic or register that owes something was not read to its end, or a
rowlog was not waited for.
It names what it could not have found (``unjudged``): what nothing was promised of, ``unavailable`` where
nothing was asked and acknowledged after the last fault, and ``stored_late`` where nobody told a deadline.

The last reads of a history, whose process is ``final``, are the log as it ended: after healing,
everything that was acknowledged must be in it.

==================  ========================================================================================
lost_prefix         acknowledged and not there at the end: before all of its publisher's that are there
lost_middle         ... between those that are
lost_tail           ... behind them
duplicated          a payload stands at two ids
phantom             nobody asked for it
refused_but_stored  every request for it was definitely refused
old_rows            a topic that was made anew shows what was published before
reordered           against real time: it was acknowledged before an earlier row was asked for
publisher_order     one publisher's messages stand in another order than it published them
torn                a request's rows are apart, not in order or not all there, or at other ids than answered
id_reused           an id is two payloads'
other_attributes    a message has another key, or other headers, than it was published with
two_answers         one key, two answers
two_epochs          an epoch acknowledges what was asked after a later one had acknowledged
written_after_delete  acknowledged though it was asked when the topic had been deleted
stored_late         stored long after the moment until which its request was to be done
changed_read        a row that one read shows is missing in another that covers it
divergence          ... of another node; or nodes show different logs at the end
skipped, backward   a consumer was led past a row, or back
time_addressing     what was asked for by time is not exactly what was published then or later
misordered          an answer's rows are not in order
out_of_range        an answer has rows that were not asked for, or too many
unreadable          the log, or a register, can't be read at the end
expired_early       gone while it lived; expired_late: shown long after its life
floor_lowered       a floor was acknowledged, and is lower at the end
rolled_back         shown as published after its rollback; phantom_rollback: as rolled back without one
payloads_changed    what a reference shows changes; payloads_lost: it lacks what was stored
dirty_read          a reader saw what its snapshot excludes, or what stands behind an open transaction
lost_visible        a reader did not see what its snapshot includes
half_transaction    a committed transaction is not visible whole, or an undone one is
unavailable         nothing was acknowledged for longer than promised, while nothing was broken
lost_update         a compare-and-set went by another's; stale_value: an older value than was known
phantom_value       a register holds what nobody wrote
row_lost            a rowlog's acknowledged message was never done for a subscription
row_in_flight       two messages of a row were with listeners of one subscription at once
row_order           a message was offered before an earlier one of its row was done
==================  ========================================================================================
"""

from chaos.checkers.judge import NAMES, Judge, check, judge_segments
from chaos.checkers.tables import DiskTables, MemoryTables
from chaos.checkers.violations import UNAVAILABLE, Promises, Verdict, Violation, total

__all__ = [
    "NAMES",
    "UNAVAILABLE",
    "DiskTables",
    "Judge",
    "MemoryTables",
    "Promises",
    "Verdict",
    "Violation",
    "check",
    "judge_segments",
    "total",
]
