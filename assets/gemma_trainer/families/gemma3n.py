"""Gemma 3n (E2B, E4B): Gemma 3 with its own image and audio placeholders."""

from __future__ import annotations

from dataclasses import replace

from gemma_trainer.families import gemma3
from gemma_trainer.families.gemma1 import TURN_TOKENS

_PLACEHOLDERS = {"image": "<image_soft_token>", "audio": "<audio_soft_token>"}

FAMILY = replace(
    gemma3.FAMILY,
    name="gemma3n",
    title="Gemma 3n (E2B, E4B)",
    render=gemma3.renderer(_PLACEHOLDERS),
    control_tokens=TURN_TOKENS
    | {"<start_of_image>", "<end_of_image>", "<start_of_audio>", "<end_of_audio>", *_PLACEHOLDERS.values()},
    placeholders=_PLACEHOLDERS,
    context=32_768,
    model_types=("gemma3n", "gemma3n_text"),
    templates={
        "ac03dcb3b09726f1e50ac55ae58fc8d5930eadc3b3a12cb04286dc1d82ac8001": "r1",
        "af843076d88eb32a99961a6a87c39c4032d7d0974a98008323c7a8fc43179536": "plain",
    },
    plain="gemma3n.jinja",
)
