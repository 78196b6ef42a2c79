"""64-bit keys of rows and the hash that names a file's content: XXH3 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md).

Both find accidents, changed data and repeated rows, not attacks. Where xxhash is not installed, BLAKE2 (RFC 7693)
stands in, slower and with other values; training always has xxhash, which `datasets` brings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache


def algorithm() -> str:
    """The name of the hash in use: keys of another one say nothing."""
    return "blake2b" if key_function() is _blake_key else "xxh3"


@lru_cache(maxsize=1)
def key_function() -> Callable[[bytes, int], int]:
    """(bytes, seed below 2^64) -> 64-bit key, the same in every process."""
    try:
        from xxhash import xxh3_64_intdigest
    except ImportError:
        return _blake_key
    return xxh3_64_intdigest


def content_digest():
    """An object with update(bytes) and hexdigest(), 128 bits."""
    try:
        from xxhash import xxh3_128
    except ImportError:
        return hashlib.blake2b(digest_size=16)
    return xxh3_128()


def joint_hash(digests: list[str]) -> str:
    """The hash of a set of files from those of its files, in order; of one file its own."""
    if len(digests) == 1:
        return digests[0]
    whole = content_digest()
    whole.update("\n".join(digests).encode())
    return whole.hexdigest()


def _blake_key(data: bytes, seed: int = 0) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, salt=seed.to_bytes(8, "little")).digest(), "little")
