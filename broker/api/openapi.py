"""Make the OpenAPI document of this interface from the table of operations."""

from __future__ import annotations

import functools
import re
from typing import Any, Final

import orjson

from broker import __version__
from broker.api.json_schemas import RESPONSES, SCHEMAS
from broker.api.plainschemas import PLAIN_SCHEMAS
from broker.api.transaction_schemas import TRANSACTION_SCHEMAS
from broker.config.sections import LimitsConfig
from broker.operations.operation import (
    IN_PATH,
    STRING,
    Contents,
    DeclaredOperation,
    Parameter,
    Schema,
)
from broker.operations.parameters import GENERATION, IN_GENERATION, LEADER, TIMEOUT
from broker.operations.table import OPERATIONS, TOPIC, TRANSACTIONS

_LIMITS: Final = LimitsConfig()
_IN_BRACES = re.compile(r"\{(\w+)\}")
_ALWAYS = ("400", "403", "404", "405", "413", "500", "503")


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
        "components": {
            "schemas": {**SCHEMAS, **PLAIN_SCHEMAS, **TRANSACTION_SCHEMAS},
            "responses": RESPONSES,
        },
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


def _content(contents: Contents) -> Schema:
    return {media: {"schema": schema} for media, schema in contents}


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
