"""Make the OpenAPI document of this interface from the table of operations."""

from __future__ import annotations

import functools
import re
from typing import Any, Final

import orjson

from broker import __version__
from broker.config.sections import LimitsConfig
from broker.operations import replies
from broker.operations.media_types import JSON, TEXT
from broker.operations.operation import IN_PATH, Contents, DeclaredOperation, Parameter
from broker.operations.parameters import GENERATION, IN_GENERATION, LEADER, TIMEOUT
from broker.operations.shapes import INTEGER, STRING, Schema, Shape, name_of, schema_of
from broker.operations.table import OPERATIONS, TOPIC, TRANSACTIONS

_LIMITS: Final = LimitsConfig()
_IN_BRACES = re.compile(r"\{(\w+)\}")
_ALWAYS = ("400", "403", "404", "405", "413", "429", "500", "503")


@functools.cache
def document(limits: LimitsConfig = _LIMITS) -> bytes:
    """Return the document of a node with these limits, as JSON."""
    return orjson.dumps(make_document(limits))


def make_document(limits: LimitsConfig = _LIMITS) -> dict[str, Any]:
    """Return the document of a node with these limits, as a value."""
    paths: dict[str, Schema] = {}
    for each in OPERATIONS:
        paths.setdefault(each.template, {})[each.method.lower()] = _described(each, limits)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Broker", "version": __version__},
        "paths": paths,
        "components": {"schemas": _schemas(), "responses": RESPONSES},
    }


def _described(operation: DeclaredOperation, limits: LimitsConfig) -> Schema:
    parameters, headers = operation.parameters, dict(operation.reply_headers)
    errors = {*_ALWAYS, *operation.errors}
    if operation.template.startswith((TOPIC, TRANSACTIONS)):
        parameters, headers = (*parameters, TIMEOUT), headers | LEADER
    if operation.template.startswith(TOPIC) and operation.name != "create_topic":
        parameters, headers = (*parameters, GENERATION), headers | IN_GENERATION
        errors.add("410")
    done: Schema = {
        "description": operation.told,
        "headers": {"X-Request-Id": {"required": True, "schema": STRING}, **headers},
    }
    if operation.gives:
        done["content"] = _content(operation.gives)
    described: Schema = {
        "summary": operation.summary,
        "operationId": operation.name,
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": IN_PATH[name]}
                for name in _IN_BRACES.findall(operation.template)
            ),
            *(_parameter(each, limits) for each in parameters),
        ],
        "responses": {
            "200": done,
            **{status: {"$ref": f"#/components/responses/{status}"} for status in sorted(errors)},
        },
    }
    if operation.takes:
        described["requestBody"] = {
            "required": operation.needs_body,
            "content": _content(operation.takes),
        }
    return described


def _schemas() -> dict[str, Schema]:
    """Return the schemas of all bodies that have names."""
    bodies = [shape for each in OPERATIONS for _, shape in (*each.takes, *each.gives)]
    bodies += [replies.Error, replies.Event]
    return {name: schema_of(shape) for shape in bodies if (name := name_of(shape))}


def _content(contents: Contents) -> Schema:
    return {media: {"schema": _schema(shape)} for media, shape in contents}


def _schema(shape: Shape) -> Schema:
    name = name_of(shape)
    return schema_of(shape) if name is None else {"$ref": f"#/components/schemas/{name}"}


def _parameter(parameter: Parameter, limits: LimitsConfig) -> Schema:
    """Return a parameter; the bound that a key of the configuration sets has that key's value."""
    schema = parameter.schema
    if isinstance(most := schema.get("maximum"), str):
        schema = {**schema, "maximum": getattr(limits, most)}
    told: Schema = {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.text,
        "schema": schema,
    }
    return {**told, "required": True} if parameter.required else told


def _error(text: str) -> Schema:
    return {
        "description": text,
        "headers": {
            "X-Request-Id": {"required": True, "schema": STRING},
            "Broker-Error": {
                "description": "The error's code.",
                "required": True,
                "schema": STRING,
            },
            "Broker-Outcome": {
                "description": "refused: the request certainly had no effect. unknown: it may have had one.",
                "required": True,
                "schema": {"enum": ["refused", "unknown"]},
            },
            "Retry-After": {"description": "Seconds.", "schema": INTEGER},
        },
        "content": _content(((JSON, replies.Error), (TEXT, str))),
    }


RESPONSES: Final[dict[str, Schema]] = {
    "400": _error("The request is malformed, or a name is not valid."),
    "403": _error(
        "The caller may not do this, or a browser sent the request for a page of another site."
    ),
    "404": _error(
        "The topic, path, cursor or node does not exist, or a node of this role does not serve it."
    ),
    "405": _error("The path does not have this method. The header Allow names its methods."),
    "409": _error(
        "The object exists already, is sealed or over, conflicts, has moved, or there are too many."
    ),
    "410": _error("The place is in another generation: the topic was created again."),
    "413": _error("The body, a message, or the number of messages is above its limit."),
    "422": _error("The transaction is too old, or the idempotency key was used with another body."),
    "429": _error("The caller, or the topic, has used up a quota. Try again later."),
    "500": _error("The outcome of the request is unknown."),
    "501": _error("This node lacks a package that the answer needs."),
    "503": _error("The request was not done. Try again later."),
    "507": _error("The disk is full."),
}
