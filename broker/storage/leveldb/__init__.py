"""The table of a standalone node: one LevelDB database in a directory of its own.

Every key begins with a lead byte. Heads lie apart from all other cells::

    m  row                            head of a row in MESSAGES
    p  row                            head of a row in PAYLOADS
    r  row                            head of a row in RECORDS, which has no other cell
    M  length uint16 | row | column   another cell of a row in MESSAGES
    P  length uint16 | row | column   another cell of a row in PAYLOADS
    f                                 format and store id, the same as in IDENTITY

Heads sort as their rows do, so a scan is one iterator. In the key of another cell the row's length comes before
the row. Two rows of the same length differ in a byte of the row, and two rows of different lengths differ in the
length. So the cells of a row are contiguous, in the order of their columns, for any bytes of the row. All pages of
a log have keys of the same length. So the cells of consecutive pages are one range of keys.

::

    table.py             the port: the reads, and the opening
    write_thread.py      its writes: the one thread that makes them, and its behaviour after a failed write
    round.py             one write batch: the changes of many callers, checked
    pending_calls.py     calls that another thread answers, and their deadline
    compaction.py        freeing disk space after pages are cleared
    database.py          the only module that uses plyvel
    files.py             the directory: lock, identity, the note of a clean close
    read_threads.py      the threads that read
    torn_tail.py         the end of LevelDB's log and manifest after a power cut
    snapshot.py          copies for inspection, also of a store that a broker serves
    directory_repair.py  checks of a store, and repaired copies
    page_mend.py         stubs for the entries that a repaired copy lacks
    row_mend.py          its topics' records and roots
    chain_mend.py        the heads of its pages; the keys of the damaged original
    payload_mend.py      its payload logs
    layout.py            the keys above
"""
