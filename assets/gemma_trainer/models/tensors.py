"""What the headers of safetensors files tell; weights are not read. https://github.com/huggingface/safetensors"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import NamedTuple

MOST = 1 << 28  # bytes of a header


class Tensor(NamedTuple):
    """Where the data of a tensor lie: bytes of `file` from `start` to `end`."""

    shape: tuple[int, ...]
    dtype: str
    file: Path
    start: int
    end: int


def read_header(file: Path) -> dict[str, Tensor]:
    """The tensors of a file by name. Raises ValueError for one that is damaged or cut off, OSError as usual."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        head = stream.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
        if length > min(size - 8, MOST):
            raise ValueError(f"it has {size} bytes, less than its header")
        header, first = json.loads(stream.read(length)), 8 + length
    try:
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        tensors = {
            name: Tensor(
                tuple(e["shape"]), e["dtype"], file, first + e["data_offsets"][0], first + e["data_offsets"][1]
            )
            for name, e in entries.items()
        }
    except (AttributeError, KeyError, TypeError, IndexError):
        raise ValueError("its header is damaged") from None
    end = max((tensor.end for tensor in tensors.values()), default=first)
    if end != size:
        raise ValueError(f"it has {size} bytes, and its header tells of {end}")
    return tensors


def read_headers(folder: Path) -> dict[str, Tensor]:
    """Of all weight files of a model's folder; empty where one cannot be read."""
    found: dict[str, Tensor] = {}
    try:
        for file in sorted(folder.glob("*.safetensors")):
            found |= read_header(file)
    except (OSError, ValueError):
        return {}
    return found
