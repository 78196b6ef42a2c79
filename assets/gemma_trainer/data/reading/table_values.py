"""Values of Arrow tables as JSON values: what a row holds is the same for whoever checks, shows, writes or trains it.

Times are text as Arrow prints them (2026-01-01 12:00:00), spans of time are seconds, decimals are numbers where a number
holds them and text where none does, NaN is null, which is what pandas means by it. Bytes are an object `{"base64": ...}`,
so that they never pass for text; under the keys in which media keep their data they are the base64 text alone.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal

_PLAIN = (str, int, bool, type(None))
_DATA_KEYS = frozenset({"bytes", "base64", "data"})


def batch_rows(batch) -> Iterator[dict]:
    """The rows of a pyarrow RecordBatch as JSON objects. Raises what pyarrow does of values that it cannot give."""
    from pyarrow import RecordBatch

    names = [field.name for field in batch.schema if not _is_plain(field.type)]
    if names:
        kinds = [_readable(field.type) for field in batch.schema]
        columns = [column.cast(kind, safe=False) if kind != column.type else column
                   for column, kind in zip(batch.columns, kinds, strict=True)]  # fmt: skip
        batch = RecordBatch.from_arrays(columns, batch.schema.names)
    for row in batch.to_pylist():
        for name in names:
            row[name] = json_value(row[name], name)
        yield row


def json_value(value: object, key: str = "") -> object:
    """The JSON value of what pyarrow gives for a cell or a part of one, which stands under `key`."""
    if value.__class__ in _PLAIN:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None if math.isnan(value) else str(value)
    if isinstance(value, dict):
        return {name: json_value(item, name) for name, item in value.items()}
    if isinstance(value, list | tuple):  # a map is a list of pairs
        return [json_value(item, key) for item in value]
    if isinstance(value, bytes):
        text = base64.b64encode(value).decode("ascii")
        return text if key in _DATA_KEYS else {"base64": text}
    if isinstance(value, Decimal):
        return _number(value)
    return value.total_seconds() if isinstance(value, timedelta) else str(value)


def _number(value: Decimal) -> int | float | str:
    if value.as_tuple().exponent >= 0:
        return int(value)
    number = float(value)
    return number if Decimal(repr(number)) == value else f"{value:f}"


def _is_plain(kind) -> bool:
    """Whether all values of a type are JSON values as pyarrow gives them."""
    from pyarrow import types

    if types.is_struct(kind):
        return all(_is_plain(field.type) for field in kind)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind) or types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    text = types.is_string(kind) or types.is_large_string(kind)
    return text or types.is_integer(kind) or types.is_boolean(kind) or types.is_null(kind)


def _readable(kind):
    """The type with text in place of times: Python has no object for nanoseconds and for days after the year 9999."""
    import pyarrow
    from pyarrow import types

    if types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind):
        return pyarrow.string()
    if types.is_duration(kind):
        return pyarrow.duration("us") if kind.unit == "ns" else kind
    if types.is_dictionary(kind):
        return _readable(kind.value_type)
    if types.is_struct(kind):
        return pyarrow.struct([field.with_type(_readable(field.type)) for field in kind])
    if types.is_map(kind):
        return pyarrow.map_(_readable(kind.key_type), _readable(kind.item_type))
    if types.is_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_readable(kind.value_type)))
    if types.is_large_list(kind):
        return pyarrow.large_list(kind.value_field.with_type(_readable(kind.value_type)))
    if types.is_fixed_size_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_readable(kind.value_type)), kind.list_size)
    return kind
