"""HTTP in, domain calls out; no decisions.

::

    bytes --aiohttp--> shell --> router --> authorize --> handler --> topics
                         |                                   |
                         `--- bytes <--- Reply or Stream <---'

Handlers take a ``Request`` value and return a ``Reply`` or a ``Stream`` value, so that they can be
called without a socket; only ``shell`` and ``connection`` know aiohttp.
"""
