"""Functions that build the operations of the OpenAPI document."""

from __future__ import annotations

from broker.api.json_schemas import STRING, Spec


def query(name: str, text: str, schema: Spec) -> Spec:
    """Return a query parameter."""
    return {"name": name, "in": "query", "description": text, "schema": schema}


def header(name: str, text: str, schema: Spec) -> Spec:
    """Return a request header."""
    return {"name": name, "in": "header", "description": text, "schema": schema}


def ok(text: str, *content: tuple[str, Spec], headers: Spec | None = None) -> Spec:
    """Return the answer to a successful request."""
    reply: Spec = {
        "description": text,
        "headers": {"X-Request-Id": {"required": True, "schema": STRING}, **(headers or {})},
    }
    if content:
        reply["content"] = {media: {"schema": schema} for media, schema in content}
    return reply


def body(*content: tuple[str, Spec], required: bool = True) -> Spec:
    """Return the body of a request, with a schema for each media type."""
    return {
        "required": required,
        "content": {media: {"schema": schema} for media, schema in content},
    }
