"""Where a tokenizer and its chat template come from: a folder, a hub id, a .gguf file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemma_trainer.data.encode import Encoded, RowTokenizer
from gemma_trainer.families.catalogue import detect_family
from gemma_trainer.families.family import Family
from gemma_trainer.families.template import Template
from gemma_trainer.models.resolve import HUB_ID
from gemma_trainer.rows.problems import REMOTE_FAILED, USAGE, Failure, missing

__all__ = ["Encoded", "Facts", "RowTokenizer", "load_tokenizer"]

_HUB_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
)


@dataclass
class Facts:
    """What the files beside a tokenizer say about the model."""

    source: str  # folder, file or hub id
    family: Family | None  # None when nothing tells it
    config: dict = field(default_factory=dict)  # config.json, empty when absent
    adds_bos: bool = False  # the tokenizer adds a <bos> of its own when asked for special tokens


def load_tokenizer(model: str, network: bool = True) -> tuple[RowTokenizer, Template | None, Facts]:
    """Tokenizer, chat template (None if there is none) and facts of a local folder, a .gguf file or a hub id.

    A local path is tried first; the network is used only for an id of the form org/name, and not at all without
    `network` or with HF_HUB_OFFLINE=1. Folders of adapters and of training runs work like models. Raises Failure.
    """
    path = Path(model).expanduser()
    if path.is_file() and path.suffix == ".gguf":
        return _from_gguf(path)
    if path.exists():
        return _from_folder(path, model)
    if HUB_ID.fullmatch(model) and path.suffix != ".gguf":
        return _from_folder(_download(model, network and not _offline()), model)
    raise Failure(USAGE, "model-not-found", f"{model} is no local folder, no .gguf file and no hub id (org/name)")


def _from_folder(path: Path, source: str) -> tuple[RowTokenizer, Template | None, Facts]:
    folder = path if path.is_dir() else path.parent
    tokenizer = RowTokenizer.from_dir(path)
    template, config = _read_template(folder), _read_json(folder / "config.json")
    name = _read_json(folder / "adapter_config.json").get("base_model_name_or_path") or source
    return tokenizer, template, _facts(source, tokenizer, template, config, str(name))


def _facts(source: str, tokenizer: RowTokenizer, template: Template | None, config: dict, name: str) -> Facts:
    family = detect_family(config, template, _Vocabulary(tokenizer.backend), name)
    return Facts(source, family, config, tokenizer.adds_bos)


class _Vocabulary:
    """Tells whether a token is known, without a copy of all of them."""

    def __init__(self, backend):
        self.backend = backend

    def __contains__(self, token: str) -> bool:
        return self.backend.token_to_id(token) is not None


def _read_template(folder: Path) -> Template | None:
    """chat_template.jinja, else `chat_template` of tokenizer_config.json, else of chat_template.json."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return Template(_read_text(file))
    for name in ("tokenizer_config.json", "chat_template.json"):
        source = _read_json(folder / name).get("chat_template")
        if isinstance(source, list):  # several named templates: [{"name": "default", "template": ...}]
            named = {entry.get("name"): entry.get("template") for entry in source}
            source = named.get("default")
        if source:
            return Template(source)
    return None


def _read_text(file: Path) -> str:
    """Text with its line ends as they are: the hash of a template is over its bytes."""
    try:
        return file.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(USAGE, "tokenizer-unreadable", f"{file}: {error}"[:300], file=str(file)) from None


def _read_json(file: Path) -> dict:
    if not file.is_file():
        return {}
    try:
        value = json.loads(_read_text(file))
    except ValueError as error:
        raise Failure(USAGE, "tokenizer-unreadable", f"{file}: {error}"[:300], file=str(file)) from None
    return value if isinstance(value, dict) else {}


def _download(model: str, network: bool) -> Path:
    """The folder of the cached snapshot that holds the tokenizer files of a hub model."""
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    except ImportError:
        raise missing("huggingface_hub", f"loading {model} from the hub") from None
    folder = None
    for name in _HUB_FILES:
        try:
            file = Path(hf_hub_download(model, name, local_files_only=not network))
        except EntryNotFoundError as error:  # not in the model; or no network, and not in the cache
            if name == "tokenizer.json":
                raise _hub_failure(model, isinstance(error, LocalEntryNotFoundError), network) from None
            continue
        except Exception as error:
            raise _explained(model, error) from None
        folder = folder or file.parent
    return folder


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _hub_failure(model: str, unreachable: bool, network: bool) -> Failure:
    if unreachable:
        why = " and HF_HUB_OFFLINE is set" if _offline() else " and the hub cannot be reached" if network else ""
        text = f"{model} is not in the local cache{why}"
        return Failure(REMOTE_FAILED, "model-offline", text)
    return Failure(USAGE, "tokenizer-not-found", f"the hub model {model} has no tokenizer.json")


def _explained(model: str, error: Exception) -> Failure:
    """One plain line for what the hub client raised."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        text = f"{model} is gated: accept its licence at huggingface.co/{model}, then `hf auth login`"
        return Failure(REMOTE_FAILED, "model-gated", text)
    if isinstance(error, RepositoryNotFoundError):
        text = f"{model} is no local folder and not on the hub (or private: `hf auth login`)"
        return Failure(USAGE, "model-not-found", text)
    lines = str(error).splitlines() or [""]
    text = f"{model} could not be fetched: {type(error).__name__}: {lines[0][:200]}"
    return Failure(REMOTE_FAILED, "model-offline", text)


def _from_gguf(path: Path) -> tuple[RowTokenizer, Template | None, Facts]:
    """Tokenizer and template in the metadata of a GGUF file (github.com/ggml-org/ggml, docs/gguf.md)."""
    try:
        from gguf import GGUFReader
        from transformers import AutoTokenizer
    except ImportError as error:
        package = "gguf" if "gguf" in str(error) else "transformers"
        raise missing(package, "reading a .gguf file") from None
    try:
        fields = GGUFReader(path).fields
        loaded = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    except (OSError, ValueError, KeyError) as error:
        text = f"{path} cannot be read as a GGUF file: {str(error).splitlines()[0][:200]}"
        raise Failure(USAGE, "tokenizer-unreadable", text, file=str(path)) from None

    def metadata(name: str) -> Any:
        entry = fields.get(name)
        return entry.contents() if entry else None

    source = metadata("tokenizer.chat_template")
    template = Template(source) if source else None
    tokenizer = RowTokenizer(loaded.backend_tokenizer)
    config = gguf_config(metadata, tokenizer.backend.get_vocab_size())
    name = metadata("general.basename") or path.stem
    return tokenizer, template, _facts(str(path), tokenizer, template, config, f"{name} {path.stem}")


_GGUF_KINDS = {"gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "gemma4": "gemma4_text"}
# Keys behind the architecture's name (docs/gguf.md) of what a config.json would say.
_GGUF_SIZES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "context_length": "max_position_embeddings",
}


def gguf_config(metadata: Callable[[str], Any], vocabulary: int) -> dict:
    """What config.json would say, from the metadata of a GGUF file."""
    kind = metadata("general.architecture") or ""
    sizes = {name: metadata(f"{kind}.{key}") for key, name in _GGUF_SIZES.items()}
    config = {"model_type": _GGUF_KINDS.get(kind, kind), "vocab_size": vocabulary}
    return config | {name: size for name, size in sizes.items() if size is not None}
