"""The service's description in OpenAPI 3.1, made of the door's own functions: names, hints, defaults, docstrings.

Owns how a hint becomes a schema. Nothing of it is written by hand, so it cannot say what is not so.
"""

from __future__ import annotations

import inspect
import json
import types
import typing
from functools import cache
from typing import Any, Final, Literal, get_args, get_origin

from avmfs.extras import version_text
from avmfs.rpc import methods
from avmfs.signatures import Parameter, parameters

_BYTES: Final = {
    "oneOf": [
        {"type": "string", "description": "Its UTF-8."},
        {"type": "object", "required": ["base64"], "additionalProperties": False,
         "properties": {"base64": {"type": "string", "contentEncoding": "base64"}}},
    ]
}  # fmt: skip
_PLAIN: Final[dict[Any, dict[str, Any]]] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    str: {"type": "string"},
    bytes: _BYTES,
    dict: {"type": "object"},
    types.NoneType: {"type": "null"},
    Any: {},
}
_SESSION: Final = {
    "get": ("Who a token is", '{"agent", "operator", "version"}'),
    "post": ("A token for a one-time code", '{"token", "expires_s"}'),
    "delete": ("End a token", "{}"),
}


@cache
def text() -> str:
    return json.dumps(document(), sort_keys=True)


def document() -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "avmfs",
            "version": version_text(),
            "description": "The methods of the memory's door, for the agent of the token. Bytes in an answer are"
            ' {"base64": "..."}.',
        },
        "security": [{"token": []}],
        "paths": {
            **{f"/api/{name}": {"post": _operation(name)} for name in methods.names()},
            "/session": {verb: _session(verb, *said) for verb, said in _SESSION.items()},
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {"Error": {"description": "Refused", "content": _json(_ref("Error"))}},
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {
                        "error": {
                            "type": "object",
                            "required": ["code", "errno", "path", "reason"],
                            "properties": {
                                "code": {"type": "string", "examples": ["ENOENT"]},
                                "errno": {"type": "integer"},
                                "path": {"type": ["string", "null"]},
                                "reason": {"type": "string"},
                            },
                        }
                    },
                }
            },
        },
    }


@cache
def binary(name: str) -> frozenset[str]:
    """The arguments of a method that are bytes."""
    return frozenset(each.argument for each in _parameters(name) if bytes in (each.hint, *get_args(each.hint)))


def schema_of(hint: Any) -> dict[str, Any]:
    """The JSON schema of a value of this type."""
    origin = get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [schema_of(each) for each in get_args(hint)]}
    if origin is Literal:
        return {"enum": [*get_args(hint)]}
    if origin is list or hint is list:
        return {"type": "array", "items": schema_of(get_args(hint)[0]) if get_args(hint) else {}}
    if origin is tuple:
        return {"type": "array"}
    return dict(_PLAIN[origin or hint])


def _operation(name: str) -> dict[str, Any]:
    function = methods.function(name)
    taken = _parameters(name)
    said = inspect.getdoc(function) or name
    body: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {each.argument: _argument(each) for each in taken},
    }
    if required := [each.argument for each in taken if each.required]:
        body["required"] = required
    result = {
        "type": "object",
        "required": ["result", "urgent"],
        "properties": {
            "result": schema_of(typing.get_type_hints(function)["return"]),
            "urgent": {"type": "string", "description": "Unread urgent mail, as text."},
        },
    }
    return {
        "operationId": name,
        "summary": said.partition("\n")[0],
        "description": said,
        "requestBody": {"required": bool(required), "content": _json(body)},
        "responses": _answers(result),
    }


def _session(verb: str, summary: str, gives: str) -> dict[str, Any]:
    result = {"type": "object", "required": ["result"], "properties": {"result": {"type": "object"}}}
    operation = {
        "operationId": f"{verb}_session",
        "summary": summary,
        "description": gives,
        "responses": _answers(result),
    }
    if verb == "post":
        code = {"type": "object", "required": ["code"], "properties": {"code": {"type": "string"}}}
        operation |= {"security": [], "requestBody": {"required": True, "content": _json(code)}}
    return operation


def _argument(parameter: Parameter) -> dict[str, Any]:
    schema = schema_of(parameter.hint)
    if parameter.low is not None:
        schema |= {"minimum": parameter.low, "maximum": parameter.high}
    if not parameter.required and isinstance(parameter.default, (bool, int, float, str)):
        schema["default"] = parameter.default
    return schema


def _answers(result: dict[str, Any]) -> dict[str, Any]:
    return {
        "200": {"description": "Done", "content": _json(result)},
        "default": {"$ref": "#/components/responses/Error"},
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


@cache
def _parameters(name: str) -> tuple[Parameter, ...]:
    return parameters(methods.function(name))
