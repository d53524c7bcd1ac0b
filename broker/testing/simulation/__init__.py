"""A whole cluster in one process, from one seed: real nodes and clients, all else in memory.

Files, from below: hosts (whose step is it), transport, sockets, network, loop; chance, clocks, storage,
client, node; cluster (all of them), trace, world; public (what applications use).
"""
