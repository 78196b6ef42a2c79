"""JSON files that are never seen half written."""

from __future__ import annotations

import json
import os
from pathlib import Path


def write_json(path: Path, value: object) -> None:
    """Replace a file in one step: readers see the old text or the new, never half of it."""
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="utf-8", errors="backslashreplace") as file:  # a name that is no UTF-8: JSON's escapes
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
