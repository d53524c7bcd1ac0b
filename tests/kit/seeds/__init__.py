"""Seeds of the simulated cluster: a seed plans workloads and faults, and the verifier's checkers judge the run.

``python -m tests.kit.seeds --help`` runs them.
"""
