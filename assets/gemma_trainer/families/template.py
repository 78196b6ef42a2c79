"""A chat template as it came with a tokenizer: its hash, and rendering as transformers renders it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from hashlib import sha256

from gemma_trainer.families.family import RenderError

SPECIAL_TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}


@dataclass(frozen=True)
class Template:
    """Jinja source of a chat template."""

    source: str

    @cached_property
    def sha256(self) -> str:
        return _sha(self.source)

    @cached_property
    def hashes(self) -> tuple[str, ...]:
        """The hash and those of the template with and without a final newline, which Jinja does not print."""
        bare = self.source.removesuffix("\n")
        return self.sha256, _sha(bare), _sha(bare + "\n")

    @cached_property
    def _compiled(self):
        return _environment().from_string(self.source)

    def render(self, messages, tools=None, add_generation_prompt=False, **template_kwargs) -> str:
        """The text of a conversation. Raises RenderError when the template refuses it or fails on it."""
        context = {**SPECIAL_TOKENS, **template_kwargs}
        try:
            return self._compiled.render(
                messages=messages,
                tools=tools or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **context,
            )
        except ImportError:
            raise
        except Exception as error:  # a template is a program of its own: whatever it meets ends here
            lines = str(error).splitlines() or [type(error).__name__]
            raise RenderError(
                "template-refused", f"the chat template refuses it: {lines[0][:200]}", "messages"
            ) from None


def _sha(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _environment():
    """The Jinja environment of transformers.utils.chat_template_utils 5.x: sandboxed, with its additions."""
    try:
        import jinja2.ext
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        from gemma_trainer.rows.problems import missing

        raise missing("jinja2", "rendering with the tokenizer's chat template") from None

    class Generation(jinja2.ext.Extension):
        """`{% generation %}` marks assistant text for trainers; here it prints its body."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str):
    raise RenderError("template-refused", message)
