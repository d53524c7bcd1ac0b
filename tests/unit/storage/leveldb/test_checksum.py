import random

import pytest

from broker.storage.leveldb.checksum import crc32c, masked_crc32c

# RFC 3720, appendix B.4, and the check value of the algorithm.
KNOWN = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]


def byte_by_byte(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(("data", "crc"), KNOWN)
def test_known_checksums(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


@pytest.mark.parametrize("size", [*range(1, 70), 127, 128, 129, 1000, 4096, 32761])
def test_the_checksum_of_every_length_matches_the_definition(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert crc32c(data) == byte_by_byte(data)


def test_stored_checksums_are_masked() -> None:
    # crc32c_test.cc: the mask is a rotation and a constant.
    assert masked_crc32c(b"foo") != crc32c(b"foo")
    rotated = (masked_crc32c(b"foo") - 0xA282EAD8) & 0xFFFFFFFF
    assert (rotated >> 17 | rotated << 15) & 0xFFFFFFFF == crc32c(b"foo")
