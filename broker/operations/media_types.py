"""The media types of bodies."""

from __future__ import annotations

from typing import Final

AVRO: Final = "avro/binary"
"""As in the original."""
MESSAGES: Final = "avro/message"
"""Messages with their keys and headers, in Avro."""
AVRO_JSON: Final = "avro/json"
JSON: Final = "application/json"
TEXT: Final = "text/plain"
PLAIN: Final = f"{TEXT}; charset=utf-8"
OCTETS: Final = "application/octet-stream"
METRICS: Final = "text/plain; version=1.0.0; charset=utf-8"
EVENTS: Final = "text/event-stream"
ARROW: Final = "application/vnd.apache.arrow.stream"
THRIFT: Final = "application/x-thrift"
TEPHRA_SNAPSHOT: Final = "application/x-tephra-snapshot"
"""The whole state of a transaction service, as Tephra writes it."""
