"""Every stable code: severity, cause, fix. references/error-codes*.md are this table for readers."""

from __future__ import annotations

from typing import NamedTuple

from gemma_trainer.rows.data_codes import DATA_CODES
from gemma_trainer.rows.distill_codes import DISTILL
from gemma_trainer.rows.planning_codes import PLANNING
from gemma_trainer.rows.training_codes import TRAINING


class Code(NamedTuple):
    severity: str  # "error" fails the command, "warning" fails it under --strict
    cause: str
    fix: str


def _error(cause: str, fix: str) -> Code:
    return Code("error", cause, fix)


def _warning(cause: str, fix: str) -> Code:
    return Code("warning", cause, fix)


# Any command.
COMMAND = {
    "io-failed": _error(
        "The operating system refused to read or write.",
        "Check path, permissions and free space, then run the same command again.",
    ),
    "usage": _error("A flag or value is not accepted.", "See --help of the command."),
    "shards-missing": _error(
        "Records do not add up: shards are missing or differ.", "Run the shards that are missing."
    ),
    "worker-died": _error("A worker process was killed.", "Run the command again with fewer --workers."),
    "internal": _error(
        "The command met a state it does not know.", "Report it with the traceback that --debug prints."
    ),
    "unknown-config-key": _error(
        "The --config file has a key that is no flag of the command.", "Rename or remove the key."
    ),
    "config-unreadable": _error(
        "The --config file cannot be read as YAML.", "Give a YAML mapping of flag names to values."
    ),
    "file-not-found": _error("An input file or folder does not exist.", "Check the path."),
    "output-exists": _error("The output is already there.", "Choose another name or pass --overwrite."),
    "interrupted": _error("Ctrl-C or SIGTERM ended the command.", "Run the same command again."),
    "dependency-missing": _error(
        "A Python package that this step needs is not installed.", "Run the install command in the message."
    ),
}

# Rendering and tokenizers.
RENDERING = {
    "system-refused": _error(
        "Gemma 1 and 2 have no system turn.", "Put the system text in front of the first user text."
    ),
    "roles-not-alternating": _error(
        "Gemma 1 to 3n want user and assistant to take turns, the user first.",
        "`convert --repair merge-turns` joins neighbours of the same role; or split the row.",
    ),
    "template-refused": _error(
        "The chat template cannot render the conversation.",
        "Correct the message that is named; where none is, use the current template of the model's family.",
    ),
    "mask-ambiguous": _error(
        "The chat template joins messages so that per-message weights or loss on the last turn cannot be placed.",
        "Give the messages of a turn the same weight, or use the current template of the model.",
    ),
    "mask-not-found": _error(
        "The chat template does not write the turn marks of the family, so the answers cannot be found.",
        "Pass the family the template belongs to, or use the model's own template.",
    ),
    "model-not-found": _error("There is no such local directory or hub model.", "Check the path or the hub id."),
    "model-gated": _error("The hub model asks for a licence or a login.", "Accept its licence on the hub and log in."),
    "model-offline": _error(
        "The model is not in the local cache and the network is off or down.",
        "Download it first, or unset HF_HUB_OFFLINE.",
    ),
    "tokenizer-not-found": _error("The model has no tokenizer.json.", "Give a folder that holds tokenizer.json."),
    "tokenizer-unreadable": _error("tokenizer.json or its neighbours cannot be read.", "Download the file again."),
}

# Data sets, planning, training, distillation.
TABLES = {**DATA_CODES, **PLANNING, **TRAINING, **DISTILL}

CODES: dict[str, Code] = {**COMMAND, **RENDERING, **{code: Code(*entry) for code, entry in TABLES.items()}}
