"""What only this project's own tests need: programs that they start, suites that they share, worlds that they explore."""
