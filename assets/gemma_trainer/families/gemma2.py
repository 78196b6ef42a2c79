"""Gemma 2: the template and tokens of Gemma 1."""

from __future__ import annotations

from dataclasses import replace

from gemma_trainer.families import gemma1

FAMILY = replace(gemma1.FAMILY, name="gemma2", title="Gemma 2", model_types=("gemma2",))
