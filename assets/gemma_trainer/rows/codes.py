"""Every stable code: severity, cause, fix. references/error-codes*.md are this table for readers."""

from __future__ import annotations

from typing import NamedTuple

from gemma_trainer.rows.data_codes import DATA_CODES


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
        "The chat template cannot render the conversation.", "Correct the message that is named."
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

# Models, training and evaluation.
TRAINING = {
    "model-unreadable": _error(
        "The model folder or file is damaged or not of a kind that is known.",
        "Download it again, or give another model.",
    ),
    "weights-missing": _error(
        "The checkpoint does not fill the model class, so weights would stay random.",
        "Use the model's own checkpoint; report it if this is an official one.",
    ),
    "adapter-unreadable": _error(
        "The adapter folder is damaged or belongs to another model.",
        "Give the run directory and the base model of one run.",
    ),
    "nothing-trainable": _error("No parameter would be trained.", "Check --mode and the model."),
    "tower-trainable": _error(
        "Text training would change a vision or audio tower.", "Report it: towers are meant to be frozen."
    ),
    "no-rows": _error(
        "No usable row is left to train on or to measure.", "Look at the data with dataset_prep.py inspect."
    ),
    "data-refused": _error(
        "Rows of the data have errors, which follow.", "Convert the data with --rejects, or correct the rows."
    ),
    "family-unknown": _error(
        "The model is no Gemma that is known, or nothing in it tells its family.",
        "Give a Gemma; pass --family if its files do not tell.",
    ),
    "media-unsupported": _error(
        "A row holds images, audio or video; training and evaluation read text only.", "Leave these rows out."
    ),
    "experts-untrained": _warning(
        "The expert layers of a mixture-of-experts model get no adapters.", "Use --mode full to train them."
    ),
    "no-trained-token": _error(
        "Not one token would carry loss.", "Look at the loss mask with dataset_prep.py inspect."
    ),
    "no-held-out-row": _warning(
        "No row was held out, so the run cannot tell whether it learned or memorised.",
        "Pass --eval-data, or a larger --eval-fraction.",
    ),
    "rows-overlong": _warning("Rows are longer than --max-length.", "Raise --max-length, or shorten the rows."),
    "overlong-refused": _error(
        "Rows are longer than --max-length and --overlong is `error`.",
        "Raise --max-length, or pass --overlong drop or truncate.",
    ),
    "rows-not-renderable": _error(
        "The model's chat template refuses rows.", "Correct them, see dataset_prep.py validate --model."
    ),
    "template-missing": _warning(
        "The model has no chat template, so its family's plain one is used and saved.",
        "Start from the instruction-tuned (-it) model when you can.",
    ),
    "dtype-unsupported": _error("The hardware does not compute in this number format.", "Pass --dtype float32."),
    "mode-unverified": _warning(
        "This combination has not been run by the project.", "Start with a short run: --max-steps 2."
    ),
    "saved-model-differs": _error(
        "What was saved does not behave like what was trained.", "Keep the run directory and report it."
    ),
    "run-in-use": _error(
        "Another process is writing to the run directory.", "Wait for it, or choose another --output-dir."
    ),
    "disk-full": _error(
        "The disk is full; what was whole before is kept, of a training run the newest checkpoint.",
        "Make room, then run the same command again; training and --records go on from what is kept.",
    ),
    "output-unwritable": _error(
        "The file or folder of an output cannot be written.", "Write to another place, or mend its permissions."
    ),
    "checkpoint-incomplete": _error(
        "The checkpoint was not written to its end.", "Pass --resume auto, which takes the newest whole one."
    ),
    "resume-mismatch": _error(
        "The run was begun with other data, model or settings.", "Give the same ones, or choose another --output-dir."
    ),
    "loss-not-finite": _error(
        "The loss or its gradient is no number any more.", "Lower --learning-rate; use --dtype float32."
    ),
    "stopped": _error("A signal stopped the run after a saved step.", "Run the same command again: it resumes."),
    "gpus-unused": _warning("Only one of several GPUs is used.", "Set CUDA_VISIBLE_DEVICES to choose which."),
    "version-clash": _warning(
        "Installed versions are known to fail or were not tested.", "Install the version that is named."
    ),
    "torch-build": _warning("The installed PyTorch does not fit the machine.", "Install the build for this machine."),
    "sql-schema-missing": _error(
        "--metric sql needs a `schema` column with the SQL that makes the tables.", "Add it, or choose other metrics."
    ),
    "gold-sql-broken": _warning(
        "Right answers of some rows do not run on their own schema; the rows are left out of sql_match.",
        "Correct them.",
    ),
    "sql-both-empty": _warning(
        "Both queries of some rows return nothing, which proves nothing; the rows are left out of sql_match.",
        "Put rows into the schema's tables that the right answer finds.",
    ),
}

# Data sets.
DATA = {code: Code(*entry) for code, entry in DATA_CODES.items()}

CODES: dict[str, Code] = {**COMMAND, **RENDERING, **DATA, **TRAINING}
