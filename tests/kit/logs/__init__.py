"""Random runs of the log protocol over the table at its worst, judged by what clients were told."""
