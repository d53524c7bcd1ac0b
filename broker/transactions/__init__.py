"""The transaction service: who is in progress, what conflicts, what is visible, and the journal that keeps it."""
