"""The checksum of LevelDB's logs, CRC-32C (Castagnoli), computed with Python's long integers only.

The CRC of a message is its remainder, as a polynomial over GF(2), by a polynomial of degree 32. Byte by byte,
Python needs 70 ns or more for each byte. But x^n has a remainder c of 32 bits. So the first half of a message can
be folded into the second half with one product by c. That is at most 32 shifts and XORs of half the message, which
Python does at the speed of memory::

    message = first * x^n + second   =   first * c + second      (modulo the polynomial)

The message is folded to n = 2^j + 31 bits for falling j, because a product with c is 31 bits longer than its
factor. Numbers are reflected, as always in CRC-32C: the lowest bit is the coefficient of the highest power.
"""

from __future__ import annotations

import functools

_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
_LEAST = 5
_MASK_DELTA = 0xA282EAD8


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of some bytes. It does tens of MB/s for records of 32 KiB."""
    # The CRC is the remainder of the message times x^32: 32 zeros follow it, as higher bits.
    bits = len(data) * 8 + 32
    value = int.from_bytes(data, "little") ^ _ONES
    for j in range((bits - 31).bit_length(), _LEAST - 1, -1):
        left = (1 << j) + 31
        if left < bits:
            folded = bits - left
            first = value & ((1 << folded) - 1)
            value >>= folded
            for shift in _shifts(j):
                value ^= first << (shift + left - folded - 31)
            bits = left
    for _ in range(bits - 32):
        value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value ^ _ONES


def masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C in the masked form that LevelDB stores."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _ONES


@functools.cache
def _shifts(j: int) -> tuple[int, ...]:
    """Return the places of the bits of x^(2^j + 31) modulo the polynomial."""
    number = _product(_square_of(j), 1)
    return tuple(place for place in range(32) if number >> place & 1)


@functools.cache
def _square_of(j: int) -> int:
    """Return x^(2^j) modulo the polynomial."""
    if not j:
        return 1 << 30
    root = _square_of(j - 1)
    return _product(root, root)


def _product(one: int, other: int) -> int:
    """Return a product modulo the polynomial."""
    result = 0
    for place in range(31, -1, -1):
        if other >> place & 1:
            result ^= one
        one = one >> 1 ^ (_POLYNOMIAL if one & 1 else 0)
    return result
