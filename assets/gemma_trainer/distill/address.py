"""Where a server is and what opens it: base URLs of flags, and keys of environment variables."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from gemma_trainer.rows.problems import USAGE, Failure

_FORM = "http://host:port/v1"
_ENDPOINT = "/chat/completions"


def check_url(flag: str, url: str) -> None:
    """Raises Failure (exit 2) for what is no base URL, or holds a secret; the message does not repeat it."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 (raises for one that is none)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_one = False
    if not is_one or any(character.isspace() for character in url):
        raise Failure(USAGE, "usage", f"{flag} is no URL of the form {_FORM}")
    if parts.username is not None or parts.query or parts.fragment:
        text = f"{flag} holds a user, a password or a query, which would stand in files and messages"
        raise Failure(USAGE, "usage", text, fix="Put the key into an environment variable and name it: --api-key-env.")
    if url.rstrip("/").endswith(_ENDPOINT):
        text = f"{flag} is the address of one endpoint"
        raise Failure(USAGE, "usage", text, fix=f"{flag} {url.rstrip('/').removesuffix(_ENDPOINT)}")


def origin(url: str) -> tuple[str, str | None, int | None]:
    """(scheme, host, port): what a key is meant for."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def read_key(variable: str | None) -> str | None:
    """The key in an environment variable, without blanks around it. Raises Failure (exit 2) for what no header holds."""
    key = os.environ.get(variable or "", "").strip()
    if not all("!" <= character <= "~" for character in key):
        text = f"the key in {variable} holds blanks, line breaks or letters that a header cannot hold"
        raise Failure(USAGE, "usage", text, fix=f"Set {variable} to the key alone.")
    return key or None
