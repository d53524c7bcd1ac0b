"""Random runs of the log protocol over a table with all allowed faults, judged by the answers to clients."""
