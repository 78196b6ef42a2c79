"""The catalogue of families, and how to tell which one a model belongs to."""

from __future__ import annotations

import difflib
import re
from collections.abc import Container

from gemma_trainer.families import functiongemma, gemma1, gemma2, gemma3, gemma3n, gemma4
from gemma_trainer.families.family import Family
from gemma_trainer.families.template import Template

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        gemma1.FAMILY,
        gemma2.FAMILY,
        gemma3.FAMILY,
        gemma3n.FAMILY,
        gemma4.FAMILY,
        gemma4.LARGE,
        functiongemma.FAMILY,
    )
}


def family_names() -> list[str]:
    return list(FAMILIES)


def get_family(name: str) -> Family:
    """The family of that name; ValueError tells the nearest names otherwise."""
    key = name.lower().replace("_", "-")
    if key in FAMILIES:
        return FAMILIES[key]
    near = difflib.get_close_matches(key, FAMILIES, n=1, cutoff=0.4)
    hint = f"did you mean `{near[0]}`? " if near else ""
    raise ValueError(f"no family `{name}`; {hint}families: {', '.join(FAMILIES)}")


def revision(family: Family, template: Template | None) -> str | None:
    """Name of the template's revision in this family, None for an unknown one."""
    return next((family.templates[h] for h in template.hashes if h in family.templates), None) if template else None


def detect_family(
    config: dict | None = None,
    template: Template | None = None,
    tokens: Container[str] = (),
    name: str = "",
) -> Family | None:
    """The family of a model, from whatever is known of it: config.json, chat template, vocabulary, name.

    Evidence by weight: a current template hash, the config, marks in the template, control tokens, an older
    template's hash, the name. What contradicts stronger evidence is passed over.
    """
    left = list(FAMILIES.values())
    for found in (
        [family for family in left if revision(family, template) == family.current_revision],
        _by_config(config or {}),
        _by_marks(template.source if template else ""),
        _by_marks(tokens),
        [family for family in left if revision(family, template)],
        _by_name(name),
    ):
        left = [family for family in left if family in found] or left
    return left[0] if len(left) < len(FAMILIES) else None


def _by_config(config: dict) -> list[Family]:
    kind = config.get("model_type")
    found = [family for family in FAMILIES.values() if kind in family.model_types]
    if gemma4.LARGE not in found or gemma4.FAMILY not in found:
        return found
    text = config.get("text_config") or config
    small = text.get("hidden_size_per_layer_input") or text.get("num_kv_shared_layers")
    return [gemma4.FAMILY if small else gemma4.LARGE]


def _by_marks(text: Container[str]) -> list[Family]:
    """Families told by marks that occur in a template's source or are tokens of a vocabulary."""
    if "<|turn>" in text:
        return [gemma4.FAMILY, gemma4.LARGE]
    if "<start_function_call>" in text:
        return [functiongemma.FAMILY]
    if "<audio_soft_token>" in text:
        return [gemma3n.FAMILY]
    if "<start_of_image>" in text:
        return [gemma3.FAMILY]
    return [gemma1.FAMILY, gemma2.FAMILY, gemma3.FAMILY, gemma3n.FAMILY] if "<start_of_turn>" in text else []


_NAMES = (
    (r"function-?gemma", functiongemma.FAMILY),
    (r"gemma-?4.*(^|[^a-z0-9])e\d+b", gemma4.FAMILY),
    (r"gemma-?4", gemma4.LARGE),
    (r"gemma-?3n", gemma3n.FAMILY),
    (r"gemma-?3", gemma3.FAMILY),
    (r"gemma-?2(?!\d*b)", gemma2.FAMILY),
    (r"gemma-?(1|\d+b)", gemma1.FAMILY),
)


def _by_name(name: str) -> list[Family]:
    plain = name.lower().replace("_", "-").rstrip("/").rsplit("/", 1)[-1]
    return [family for pattern, family in _NAMES if re.search(pattern, plain)][:1]
