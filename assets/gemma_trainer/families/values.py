"""How the templates print values: the few Jinja rules that the direct renderers need, in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps

from gemma_trainer.families.family import Piece, RenderError


class Missing:
    """An absent field: false, prints as nothing, iterates as empty, and has no fields of its own."""

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return ""

    def __iter__(self):
        return iter(())

    def __len__(self) -> int:
        return 0

    def __getitem__(self, name):
        raise LookupError(name)


MISSING = Missing()


def guarded(render: Callable[..., list[Piece]]) -> Callable[..., list[Piece]]:
    """Turn a value of a wrong type, on which the template would crash, into a RenderError."""

    @wraps(render)
    def safe(messages, tools=None, add_generation_prompt=False, **template_kwargs) -> list[Piece]:
        try:
            return render(messages, tools, add_generation_prompt, **template_kwargs)
        except (TypeError, AttributeError, LookupError) as error:
            text = f"the template cannot render a value of this type ({type(error).__name__})"
            raise RenderError("template-refused", text, "messages") from None

    return safe


def field(value: object, name: str) -> object:
    """`value[name]` of a template: MISSING where there is no such key; an absent value has no fields."""
    if isinstance(value, dict):
        return value.get(name, MISSING)
    if value is MISSING:
        raise LookupError(name)
    return MISSING


def trim(value: object) -> str:
    return value.strip() if value.__class__ is str else str(value).strip()


def upper(value: object) -> str:
    return str(value).upper()


def dictsort(value: Mapping) -> list[tuple[str, object]]:
    """Items by key, without regard to case."""
    return sorted(value.items(), key=lambda item: item[0].lower() if isinstance(item[0], str) else item[0])


def is_sequence(value: object) -> bool:
    return hasattr(value, "__len__") and hasattr(value, "__getitem__")
