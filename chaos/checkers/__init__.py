"""Checkers find the violations in a history.

``check`` judges a history. It needs one pass and no search, because every payload is unique and reads show the
order of the log.

A verdict is *valid* only if the history shows enough to judge. It is *unknown* for a history without
acknowledged writes. It is also unknown if no read reaches the end of a topic or register with acknowledged
writes, or if the run did not wait for a rowlog.

``unjudged`` of a verdict names the violations that the checkers could not find: those without a promise,
``unavailable`` if no request was acknowledged after the last fault, and ``stored_late`` if no request gave
a deadline.

The process ``final`` makes the last reads of a history, after healing. They show the log as it ended, so
they must show every acknowledged message.

====================  ======================================================================================
lost_prefix           an acknowledged message is missing at the end, before its publisher's first present one
lost_middle           ... between its publisher's present messages
lost_tail             ... after its publisher's last present message
duplicated            a payload has two ids
phantom               a payload is in the log, but no request published it
refused_but_stored    a payload is in the log, but every request for it was refused
old_rows              a topic that was created again shows messages from before its deletion
reordered             a row stands after a row whose request began after this one was acknowledged
publisher_order       the messages of one publisher are not in the order of their publishes
torn                  the rows of a request are apart, out of order, incomplete, or not at the answered ids
id_reused             one id has two payloads
other_attributes      the key or headers of a message are not those of its publish
two_answers           requests with the same idempotency key got different answers
two_epochs            an epoch acknowledged a request that began after a later epoch had acknowledged
written_after_delete  a request was acknowledged, though it began after the topic was deleted
stored_late           a message was stored long after its request's deadline
changed_read          a row of one read is missing in another read that covers it
divergence            ... where another node answered; or nodes show different logs at the end
skipped, backward     a consumer passed over a row, or went back
time_addressing       a read by time does not show exactly the messages published then or later
misordered            the rows of an answer are not in order
out_of_range          an answer has rows outside the request's range, or more than its limit
unreadable            the log, or a register, can't be read at the end
expired_early         a message is missing before the end of its life
expired_late          a message is shown long after the end of its life
floor_lowered         an acknowledged floor is lower at the end
rolled_back           a message is shown as published after its rollback
phantom_rollback      a message is shown as rolled back, without a rollback
payloads_changed      a reference shows different payloads at different times
payloads_lost         a reference lacks stored payloads
dirty_read            a reader saw a row that its snapshot excludes, or a row after an open transaction
lost_visible          a reader did not see a row that its snapshot includes
pointer_reused        two transactions began with the same write pointer
half_transaction      a committed transaction is partly invisible, or an undone one is visible
unavailable           no request was acknowledged for longer than promised, without a fault
same_instance_id      two nodes went on with the same instance id
lost_update           two compare-and-sets replaced the same value
stale_value           a register showed an older value than was known
phantom_value         a register holds a value that no client wrote
row_lost              an acknowledged rowlog message was never done for a subscription
row_in_flight         listeners of one subscription had two messages of a row at once
row_order             a message was offered before an earlier message of its row was done
====================  ======================================================================================
"""

from chaos.checkers.judge import NAMES, Judge, check
from chaos.checkers.violations import UNAVAILABLE, Promises, Verdict, Violation

__all__ = [
    "NAMES",
    "UNAVAILABLE",
    "Judge",
    "Promises",
    "Verdict",
    "Violation",
    "check",
]
