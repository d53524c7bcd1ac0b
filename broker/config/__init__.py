"""The configuration: ``sections`` declares the keys, ``sources`` reads their values.

``scripts/gen_docs.py`` writes docs/reference/config.md from the declarations.
"""
