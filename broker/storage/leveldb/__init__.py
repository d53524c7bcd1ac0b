"""The table of a standalone node: one LevelDB database in a directory of its own.

A lead byte begins every key. Heads lie apart from all other cells::

    m  row                            head of a row in MESSAGES
    p  row                            head of a row in PAYLOADS
    r  row                            head of a row in RECORDS, which has no other cell
    M  length uint16 | row | column   another cell of a row in MESSAGES
    P  length uint16 | row | column   another cell of a row in PAYLOADS
    f                                 format and store id, as IDENTITY has them

Heads sort as their rows do, so a scan is one iterator. Before the row of another cell stands the row's
length: two rows of one length differ in a byte of the row, two of different lengths in the length; so the
cells of a row are contiguous, in the order of their columns, whatever bytes the row has. All pages of a
log have keys of one length, hence the cells of consecutive pages are one range of keys.

::

    table.py             the port: reads in threads of their own, writes by the writer
    write_thread.py      the one thread that writes, and its behaviour after a failed write
    round.py             one write batch: the changes of many callers, checked
    pending_calls.py     calls that another thread answers, and their deadline
    compaction.py        room on the disk, given back
    database.py          the one door to plyvel
    files.py             the directory: lock, identity, the note of a clean close
    read_threads.py      the threads that read
    torn_tail.py         the end of LevelDB's log and manifest after a power cut
    checksum.py          the checksum of both
    snapshot.py          copies to look at, also of a store that is served
    directory_repair.py  checks of a store, and mended copies
    layout.py            the keys above
"""
