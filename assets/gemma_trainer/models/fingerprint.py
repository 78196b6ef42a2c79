"""What tells that the files of a model are still the same."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gemma_trainer.rows.problems import USAGE, Failure

SUFFIXES = (".json", ".jinja", ".model", ".safetensors", ".bin")
OF_A_RUN = {"run.json"}  # beside a model that is the result of one
WHOLE = 64 * 2**20  # bytes up to which a file is read whole
PARTS, PART = 64, 2**16  # of a larger one: how many pieces, of how many bytes


def fingerprint(reference: str) -> dict[str, str]:
    """{file: hash of its content} of a folder; empty for a hub id, whose files are its own matter. Of large weight files
    only evenly spaced pieces are read: training changes all of them. Raises Failure (exit 2) for what may not be read."""
    folder = Path(reference).expanduser()
    if not folder.is_dir():
        return {}
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())
        return {file.name: _hash(file) for file in files if file.name not in OF_A_RUN}
    except OSError as error:
        raise Failure(USAGE, "model-unreadable", f"{error.filename or reference}: {error.strerror}") from None


def _hash(file: Path) -> str:
    size = file.stat().st_size
    digest = hashlib.blake2b(str(size).encode(), digest_size=16)
    with file.open("rb") as stream:
        if size <= WHOLE:
            digest.update(stream.read())
        else:
            for at in range(PARTS):
                stream.seek(at * (size - PART) // (PARTS - 1))
                digest.update(stream.read(PART))
    return digest.hexdigest()
