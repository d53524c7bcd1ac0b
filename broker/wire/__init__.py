"""Bytes to values and back: Avro, JSON, transactions, topic properties. No I/O.

The bytes that this package reads may come from anyone, and may be wrong or hostile. So every reader keeps these rules:

* for a malformed body it raises BadRequest, which names the wrong field, and no other error;
* its time and memory are linear in the body's length, even if the body claims larger counts and lengths;
* it ignores bytes after the end of a datum, as the decoders of the original protocol do.

Nothing in this package imports a third-party module, so that a client loads fast.
"""
