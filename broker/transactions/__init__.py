"""The transaction service: transactions in progress, conflicts, visibility, and the journal that stores them."""
