"""Translate HTTP requests into calls of the domain. This package makes no decisions.

::

    bytes --> broker.http --> dispatch: router --> authorize --> handler --> topics
                  |                                                |
                  `-- bytes <-------- Reply or ChunkedReply <------'

Handlers take a ``Request`` value and return a ``Reply`` or a ``ChunkedReply`` value, so they can be called
without a socket. Only ``broker.http`` knows aiohttp.
"""
