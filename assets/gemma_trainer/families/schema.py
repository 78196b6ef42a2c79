"""Tool declarations and call arguments as Gemma 4 writes them.

The format is that of the template: keys sorted without regard to case, types in capitals, strings between
quote tokens, nothing escaped. Odd places (a lost brace, lists printed as Python does) are the template's.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from gemma_trainer.families.family import STANDARD_NAMES
from gemma_trainer.families.values import MISSING, dictsort, field, is_sequence, upper

QUOTE = '<|"|>'


def quoted(text: object, quote: str = QUOTE) -> str:
    return f"{quote}{text}{quote}"


def value(item: object, quote_keys: bool = False, quote: str = QUOTE, none: str = "null") -> str:
    """One argument value. FunctionGemma differs in the quote token and prints None as Python does."""
    if isinstance(item, str):
        return quote + item + quote
    if item is None:
        return none
    if item is True or item is False:
        return "true" if item else "false"
    if isinstance(item, Mapping):
        pairs = (
            (quoted(key, quote) if quote_keys else str(key)) + ":" + value(inner, quote_keys, quote, none)
            for key, inner in dictsort(item)
        )
        return "{" + ",".join(pairs) + "}"
    if is_sequence(item):
        return "[" + ",".join([value(inner, quote_keys, quote, none) for inner in item]) + "]"
    return str(item)


def pairs(arguments: Mapping, quote: str = QUOTE, none: str = "null") -> str:
    """`key:value,key:value` of a call or a result."""
    return ",".join([f"{key}:{value(item, False, quote, none)}" for key, item in dictsort(arguments)])


def names(items: object, quote: str = QUOTE) -> str:
    return "required:[" + ",".join([quoted(item, quote) for item in items]) + "]"


def declaration(tool: object, parameters=None, quote: str = QUOTE) -> str:
    """`declaration:NAME{...}` of one tool. `parameters(properties)` writes the properties."""
    parameters = parameters or _parameters
    function = field(tool, "function")
    out = [f"declaration:{field(function, 'name')}{{description:{quoted(field(function, 'description'), quote)}"]
    schema = field(function, "parameters")
    if schema:
        out.append(",parameters:{")
        if field(schema, "properties"):
            out.append("properties:{" + parameters(field(schema, "properties")) + "},")
        if field(schema, "required"):
            out.append(names(field(schema, "required"), quote) + ",")
        if field(schema, "type"):
            out.append(f"type:{quoted(upper(field(schema, 'type')), quote)}}}")
    if quote is QUOTE and "response" in function:
        out.append(_response(function["response"]))
    out.append("}")
    return "".join(out).strip()


def _response(response: object) -> str:
    text = ",response:{"
    if field(response, "description"):
        text += f"description:{quoted(response['description'])},"
    if upper(field(response, "type")) == "OBJECT":
        text += f"type:{quoted('OBJECT')}}}"
    return text


def _parameters(properties: Mapping, filter_keys: bool = False) -> str:
    entries = dictsort(properties)
    return ",".join(
        [f"{key}:{{{_parameter(item)}}}" for key, item in entries if not filter_keys or key not in STANDARD_NAMES]
    )


def _parameter(schema: object) -> str:
    kind = upper(field(schema, "type"))
    out = []
    if field(schema, "description"):
        out.append(f"description:{quoted(schema['description'])}")
    if kind == "STRING" and field(schema, "enum"):
        out.append("enum:" + value(schema["enum"], quote_keys=True))
    if kind == "ARRAY" and (inner := array_items(schema, _parameters)):
        out.append(inner)
    if field(schema, "nullable"):
        out.append("nullable:true")
    if kind == "OBJECT":
        out.extend(_object(schema))
    out.append(f"type:{quoted(kind)}")
    return ",".join(out)


def _object(schema: Mapping) -> list[str]:
    properties = schema.get("properties", MISSING)
    nested = isinstance(properties, Mapping)
    out = ["properties:{" + (_parameters(properties) if nested else _parameters(schema, filter_keys=True)) + "}"]
    if field(schema, "required"):
        out.append(names(schema["required"]))
    return out


def array_items(schema: Mapping, parameters, quote: str = QUOTE, none: str = "null") -> str:
    """`items:{...}` of an array, or nothing when there is no schema of its items."""
    items = schema.get("items")
    if not (isinstance(items, Mapping) and items):
        return ""
    present = [(key, item) for key, item in dictsort(items) if item is not None]
    return "items:{" + ",".join([_item_field(key, item, parameters, quote, none) for key, item in present]) + "}"


def _item_field(key: str, item: object, parameters, quote: str, none: str) -> str:
    if key == "properties":
        return "properties:{" + (parameters(item) if isinstance(item, Mapping) else "") + "}"
    if key == "required":
        return names(item, quote)
    if key == "type":
        kinds = item.upper() if isinstance(item, str) else [upper(kind) for kind in chain(item)]
        return "type:" + value(kinds, True, quote, none)
    return f"{key}:{value(item, True, quote, none)}"
