"""A clustered, transactional message broker."""

__version__ = "0.1.0"
