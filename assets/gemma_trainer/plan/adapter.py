"""The files of an adapter folder, and the hash by which a plan names what they hold."""

from __future__ import annotations

from pathlib import Path

from gemma_trainer.data.reading.sources import data_hash

CONFIG, WEIGHTS = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")


def is_adapter(reference: str | Path) -> bool:
    """Whether a folder holds an adapter, a run's for instance."""
    return (Path(reference).expanduser() / CONFIG).is_file()


def weights_of(folder: Path) -> Path | None:
    return next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)


def adapter_hash(folder: Path) -> str | None:
    """None where the folder holds no adapter."""
    weights = weights_of(folder)
    return data_hash([folder / CONFIG, weights]) if weights and is_adapter(folder) else None
