"""The verifier: breaks a running cluster in the ways that brokers have been caught by, and says what was lost.

::

    python -m chaos run --workload log --nemesis pause,partition --minutes 5 --seed 7

    workloads   what applications do             chaos.workloads   ┐ shared with the simulation
    history     what they asked and were told    chaos.history     │
    checkers    what that shows to be wrong      chaos.checkers    ┘
    target      the cluster under test: processes, links, clocks, sessions
    nemeses     one kind of fault each, in a small file
    schedule    which faults when
    run         all of it together, and what it leaves in chaos/store

Nothing of the product imports this; ``broker chaos`` becomes this program.
"""
