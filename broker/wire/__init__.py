"""Bytes to values and back: Avro, JSON, transactions, topic properties. No I/O.

Everything that reads bytes here reads bytes of strangers. The rules, for every reader:

* a malformed body is BadRequest, with the name of the field that is wrong, and nothing else;
* time and memory are linear in the body's length, whatever the counts and lengths in it claim;
* bytes after the end of a datum are ignored, as the decoders of the original protocol ignore them.

Nothing in this package imports a third-party module, so that a client loads fast.
"""
