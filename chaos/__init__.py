"""The verifier breaks a running cluster by the faults that have broken other brokers, and reports every loss.

::

    python -m chaos run --workload log --nemesis pause,partition --minutes 5 --seed 7

    workloads   the requests of applications     chaos.workloads   ┐ shared with the simulation
    history     the requests and their answers   chaos.history     │
    checkers    find violations in a history     chaos.checkers    ┘
    target      the cluster under test: processes, links, clocks, sessions
    nemeses     one kind of fault each, in a small module
    schedule    the windows of a run and their faults
    run         all of it together; its results are in chaos/store

The product does not import this package. ``broker chaos`` runs it as a program.
"""
