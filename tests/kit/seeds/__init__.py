"""Seeds of the simulated cluster: workloads and faults that a seed plans, judged by the verifier's checkers.

``python -m tests.kit.seeds --help`` runs them.
"""
