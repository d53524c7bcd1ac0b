"""The recorded messages of Tephra's client and Tephra's server (tests/data/wire)."""

import json
from typing import NamedTuple

from tests.tidy.sources import text


class Vector(NamedTuple):
    method: str
    request: bytes
    answer: bytes


def _vectors() -> list[Vector]:
    lines = text("tests/data/wire/tephra.jsonl").splitlines()
    parsed = [json.loads(line) for line in lines]
    return [
        Vector(each["method"], bytes.fromhex(each["request"]), bytes.fromhex(each["answer"]))
        for each in parsed
    ]


VECTORS = _vectors()
