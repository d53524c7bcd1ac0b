"""The parts from which operations of the OpenAPI document are made."""

from __future__ import annotations

from broker.api.json_schemas import STRING, Spec


def query(name: str, text: str, schema: Spec) -> Spec:
    """Return a parameter of the query."""
    return {"name": name, "in": "query", "description": text, "schema": schema}


def header(name: str, text: str, schema: Spec) -> Spec:
    """Return a header of the request."""
    return {"name": name, "in": "header", "description": text, "schema": schema}


def ok(text: str, *content: tuple[str, Spec], headers: Spec | None = None) -> Spec:
    """Return the answer that tells a success."""
    reply: Spec = {
        "description": text,
        "headers": {"X-Request-Id": {"required": True, "schema": STRING}, **(headers or {})},
    }
    if content:
        reply["content"] = {media: {"schema": schema} for media, schema in content}
    return reply


def body(*content: tuple[str, Spec], required: bool = True) -> Spec:
    """Return the body of a request, by media type."""
    return {
        "required": required,
        "content": {media: {"schema": schema} for media, schema in content},
    }
