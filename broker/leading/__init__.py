"""Holding a log: claims, and giving them up."""
