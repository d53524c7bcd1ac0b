"""A store in memory, for tests and for a broker that may forget; and the same store at its worst."""
