"""The methods of the TypeScript client, from the service's description in OpenAPI: ``./run docs`` writes them anew.

Owns how a schema becomes a type. What sends a request and gives an answer is by hand: clients/typescript/src/memory.ts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from avmfs.http import openapi

_PLAIN: Final = {"integer": "number", "number": "number", "string": "string", "boolean": "boolean", "null": "null"}


def methods() -> str:
    """clients/typescript/src/methods.ts."""
    described = openapi.document()
    made = [
        "// Made from the OpenAPI description by ./run docs; not to be edited.\n",
        'import type { Bytes, Memory } from "./memory.js";\n',
        "type Json = Record<string, any>;\n",
    ]
    signatures = []
    for path, found in described["paths"].items():
        if path.startswith("/api/"):
            name = path.removeprefix("/api/")
            body = found["post"]["requestBody"]
            schema = body["content"]["application/json"]["schema"]
            fields = [*_fields(schema)]
            given = f"{_camel(name)}Arguments"
            made.append(
                f"export interface {given} {{\n{''.join(fields)}}}\n" if fields else f"export type {given} = {{}};\n"
            )
            result = _type(
                found["post"]["responses"]["200"]["content"]["application/json"]["schema"]["properties"]["result"]
            )
            needed = "" if schema.get("required") else "?"
            said = _comment(found["post"]["description"])
            signatures.append(f"{said}  {name}(given{needed}: {given}): Promise<{result}>;\n")
    made.append(f"/** Every method of the memory. */\nexport interface Methods {{\n{''.join(signatures)}}}\n")
    names = ", ".join(json.dumps(path.removeprefix("/api/")) for path in described["paths"] if path.startswith("/api/"))
    made.append(f"const names = [{names}] as const;\n")
    made.append(
        "/** The methods, asked of a memory. */\nexport function methodsOf(memory: Memory): Methods {\n"
        "  const ask = (name: string) => [name, (given: object = {}) => memory.call(name, given)];\n"
        "  return Object.fromEntries(names.map(ask)) as unknown as Methods;\n}\n"
    )
    return "\n".join(made)


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    required = schema.get("required", [])
    for name, each in schema.get("properties", {}).items():
        yield f"  {name}{'' if name in required else '?'}: {_type(each)};\n"


def _type(schema: dict[str, Any]) -> str:
    if "oneOf" in schema:  # the one such schema there is
        return "Bytes"
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(_type(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(json.dumps(each) for each in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        inner = _type(schema["items"]) if schema.get("items") else "any"
        return f"({inner})[]" if " " in inner else f"{inner}[]"
    return "Json" if kind == "object" else _PLAIN.get(str(kind), "any")


def _comment(text: str) -> str:
    lines = text.replace("*/", "* /").splitlines()
    return "  /**\n" + "".join(f"   * {line}".rstrip() + "\n" for line in lines) + "   */\n"


def _camel(name: str) -> str:
    return "".join(part.title() for part in name.split("_"))
