import struct

from chaos.sessions import password_of


def test_the_password_is_the_one_that_java_draws() -> None:
    # new java.util.Random(42): nextInt() is -1170105035, then 234785527, -1360544799, 205897768.
    drawn = struct.unpack("<4i", password_of(42 ^ 0xB3415C00))
    assert drawn == (-1170105035, 234785527, -1360544799, 205897768)


def test_each_session_has_its_own() -> None:
    passwords = {password_of(0x1000_1870_7AB_0000 + number) for number in range(100)}
    assert len(passwords) == 100
    assert {len(password) for password in passwords} == {16}


def test_a_session_may_be_given_with_or_without_its_sign() -> None:
    assert password_of(-1) == password_of((1 << 64) - 1)
