"""A whole cluster in one process, from one seed: real nodes and clients, and all other parts in memory.

The modules, from the lowest layer up:

* hosts (the process of each step), connection_end, sockets, network, loop;
* chance, machine_clocks, storage_way, client, node;
* cluster (all of them together), trace, world;
* public (the interface for applications).
"""
