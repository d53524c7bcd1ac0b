"""A secret shows itself nowhere, and a file of one is read only if no other user can read it."""

import copy
import os
import pickle

import pytest

from broker.secret import (
    FILE_BYTES_MAX,
    Secret,
    is_secret_name,
    read_secret,
    redacted,
    without_secrets,
)

CANARY = "canary-4f9c"


def test_a_secret_shows_its_text_to_reveal_alone():
    secret = Secret(CANARY)
    shown = [repr(secret), str(secret), f"{secret}", f"{secret:>40}", f"{[secret]}"]
    assert not any(CANARY in text for text in shown)
    assert secret.reveal() == CANARY
    assert copy.deepcopy([secret]) == [copy.copy(secret)] == [Secret(CANARY)]
    assert {secret: 1}[Secret(CANARY)] == 1
    assert secret != Secret("other")
    assert secret != CANARY
    assert secret
    assert not Secret()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_secret_is_not_pickled(protocol):
    with pytest.raises(TypeError, match="token_file") as refused:
        pickle.dumps({"token": Secret(CANARY)}, protocol)
    assert CANARY not in str(refused.value)
    assert pickle.loads(pickle.dumps(Secret(), protocol)) == Secret()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{CANARY}\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_that_its_owner_alone_can_read_has_a_secret(file, mode):
    file.chmod(mode)
    assert read_secret(file).reveal() == CANARY


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o666])
def test_a_file_that_others_can_read_or_change_is_refused(file, mode):
    file.chmod(mode)
    with pytest.raises(ValueError, match=rf"{mode:04o}.*chmod 600") as refused:
        read_secret(file)
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["", "\n", "two words", "two\nlines", "ümlaut", "a\0b", "x" * (FILE_BYTES_MAX + 1)]
)
def test_a_file_with_another_text_is_refused_without_showing_it(file, text):
    file.write_text(text)
    with pytest.raises(ValueError, match="one secret") as refused:
        read_secret(file)
    assert not text.strip() or text not in str(refused.value)


def test_what_is_no_file_is_refused_and_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, why in (("pipe", "regular"), ("absent", "can't be read"), (".", "regular")):
        with pytest.raises(ValueError, match=why):
            read_secret(tmp_path / name)


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "proxy-authorization",
        "Cookie",
        "Set-Cookie",
        "X-Api-Key",
        "token",
        "access_token",
        "password",
    ],
)
def test_names_of_secrets(name):
    assert is_secret_name(name)
    assert redacted([(name, CANARY), ("X-Who", "me")]) == [(name, "***"), ("X-Who", "me")]


@pytest.mark.parametrize(
    "name", ["token_file", "tokens_max", "Host", "Idempotency-Key", "token_id", "key"]
)
def test_names_of_other_values(name):
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"Authorization: Bearer {CANARY}", "Authorization: Bearer ***"),
        (f"('authorization', 'Basic {CANARY}')", "('authorization', 'Basic ***')"),
        (f"{{'Authorization': b'Bearer {CANARY}'}}", "{'Authorization': b'Bearer ***'}"),
        (f"Cookie: session={CANARY}; path=/", "Cookie: ***; path=/"),
        (f"GET http://me:{CANARY}@h:1/x", "GET http://***@h:1/x"),
        (f"/v1/topics?token={CANARY}&limit=3", "/v1/topics?token=***&limit=3"),
        (
            f"/v1/topics?limit=3&access_token={CANARY} failed",
            "/v1/topics?limit=3&access_token=*** failed",
        ),
        ("GET /v1/topics?limit=3 by http://h:1/a@b", "GET /v1/topics?limit=3 by http://h:1/a@b"),
    ],
)
def test_texts_are_shown_without_their_secrets(text, shown):
    assert without_secrets(text) == shown
