"""Null arguments of calls that their tools do not declare: Arrow gives the objects of a column the keys of all."""

from __future__ import annotations

from gemma_trainer.data.notes import key_path

_OPEN = ("additionalProperties", "anyOf", "oneOf", "allOf", "$ref")  # a schema of these may take keys it does not list


def declared_arguments(tools: list[dict] | None) -> dict[str, dict]:
    """{tool name: {argument: schema}}."""
    declared = {}
    for tool in tools or ():
        properties = (tool["function"].get("parameters") or {}).get("properties")
        declared[tool["function"]["name"]] = properties if isinstance(properties, dict) else {}
    return declared


def without_padding(arguments: dict, declared: dict) -> tuple[dict, list[str]]:
    """(arguments without the padding, paths of what was left out), at any depth.

    `declared` is {argument: schema}. Objects whose schema may take other keys are left as they are.
    """
    dropped: list[str] = []
    clean = _object(arguments, declared, "", dropped)
    return (clean, dropped) if dropped else (arguments, dropped)


def _object(value: dict, properties: dict, path: str, dropped: list[str]) -> dict:
    kept = {}
    for key, item in value.items():
        where = key_path(path, key)
        if item is None and key not in properties:
            dropped.append(where)
        else:
            kept[key] = _value(item, properties.get(key), where, dropped)
    return kept


def _value(value: object, schema: object, path: str, dropped: list[str]) -> object:
    schema = schema if isinstance(schema, dict) else {}
    if isinstance(value, list):
        return [_value(item, schema.get("items"), f"{path}[{at}]", dropped) for at, item in enumerate(value)]
    if not isinstance(value, dict) or any(schema.get(key) for key in _OPEN):
        return value
    properties = schema.get("properties")
    return _object(value, properties if isinstance(properties, dict) else {}, path, dropped)
