"""Check that a reply matches the OpenAPI document: status, headers, content type and JSON.

Tests pass every reply to a Checker, so that each test of the API tests the document, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator

from broker.api import openapi

JSON = ("application/json", "avro/json")
EVENTS = "text/event-stream"
Spec = dict[str, Any]


class Answered(NamedTuple):
    """A whole reply. ``headers`` is case-insensitive; the body is unpacked."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Undocumented(AssertionError):
    """A reply differs from the document."""


class _Known:
    """A document, and what was made of it: making a validator takes longer than using it."""

    def __init__(self, document: Spec) -> None:
        self.document = document
        # By identity, since the document outlives the validators.
        self.validators: dict[int, Draft202012Validator] = {}
        self.operations = [
            (method.upper(), re.compile(_pattern(template)), operation)
            for template, methods in document["paths"].items()
            for method, operation in methods.items()
        ]


@cache
def _of_this_release(table: int) -> _Known:
    """Return the document of the table of operations with this identity. All checkers share it."""
    del table
    return _Known(openapi.make_document())


class Checker:
    """Compares replies with the document."""

    def __init__(self, document: Spec | None = None) -> None:
        """Take a document of ``/openapi.json``; by default the one of this release."""
        known = (
            _of_this_release(id(vars(openapi)["OPERATIONS"]))
            if document is None
            else _Known(document)
        )
        self._document = known.document
        self._validators = known.validators
        self._operations = known.operations
        self.checked = 0

    def check(self, method: str, target: str, reply: Answered) -> None:
        """Raise Undocumented if the document does not allow this reply to that request."""
        self.checked += 1
        if method == "HEAD":  # The answer to GET without its body; no operation of the document.
            return
        try:
            self._check_headers(reply, self._response(method, target, reply.status))
        except Undocumented as error:
            text = f"{method} {target}: {reply.status} {dict(reply.headers)} {reply.body[:300]!r}"
            raise Undocumented(f"{error}: {text}") from None

    def _response(self, method: str, target: str, status: int) -> Spec:
        operation = self.operation(method, target.partition("?")[0])
        responses: Spec = (
            self._document["components"]["responses"]
            if operation is None
            else operation["responses"]
        )
        if operation is None and status not in (400, 404, 405):
            raise Undocumented("there is no such operation")
        try:
            response: Spec = responses[str(status)]
        except KeyError:
            raise Undocumented("the operation has no such status") from None
        while "$ref" in response:
            response = self._resolve(response["$ref"])
        return response

    def operation(self, method: str, path: str) -> Spec | None:
        for known, pattern, operation in self._operations:
            if known == method and pattern.fullmatch(path):
                found: Spec = operation
                return found
        return None

    def _check_headers(self, reply: Answered, response: Spec) -> None:
        for name, header in response.get("headers", {}).items():
            value = reply.headers.get(name)
            if value is None and header.get("required"):
                raise Undocumented(f"the header {name} is missing")
            if value is not None:
                whole = header["schema"].get("type") == "integer"
                self._check_value(int(value) if whole else value, header["schema"])
        content = response.get("content", {})
        sent = reply.headers.get("Content-Type")
        if sent is None:
            if reply.body:
                raise Undocumented("a body without a content type")
            return
        media = {_media(known): schema for known, schema in content.items()}
        if _media(sent) not in media:
            raise Undocumented(f"the type {sent!r} is none of {', '.join(media)}")
        self._check_body(_media(sent), reply.body, media[_media(sent)]["schema"])

    def _check_body(self, media: str, body: bytes, schema: Spec) -> None:
        if media in JSON:
            self._check_value(json.loads(body), schema)
        elif media == EVENTS:
            for line in body.decode().splitlines():
                if line.startswith("data: "):
                    event = self._document["components"]["schemas"]["Event"]
                    self._check_value(json.loads(line.removeprefix("data: ")), event)
        elif media == "text/plain":
            body.decode()

    def _check_value(self, value: Any, schema: Spec) -> None:
        validator = self._validators.get(id(schema))
        if validator is None:
            whole = {**schema, "components": self._document["components"]}
            validator = self._validators[id(schema)] = Draft202012Validator(whole)
        for error in validator.iter_errors(value):
            raise Undocumented(f"{error.json_path}: {error.message[:300]}")

    def _resolve(self, reference: str) -> Spec:
        value: Spec = self._document
        for name in reference.removeprefix("#/").split("/"):
            value = value[name]
        return value


def _pattern(template: str) -> str:
    return "".join(
        "[^/]+" if part.startswith("{") else re.escape(part)
        for part in re.split(r"(\{\w+\})", template)
    )


def _media(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()
