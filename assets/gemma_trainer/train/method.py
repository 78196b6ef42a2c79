"""What differs between supervised, preference and reward training; run.py does the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

from gemma_trainer.data.encode import RowTokenizer
from gemma_trainer.data.model import Model
from gemma_trainer.data.options import Row
from gemma_trainer.data.render import Renderer
from gemma_trainer.plan.plan import Plan
from gemma_trainer.rows.problems import Problem
from gemma_trainer.train.prepared import Prepared
from gemma_trainer.train.rows import EncodedSet
from gemma_trainer.train.start import Start

ASSETS = Path(__file__).parents[2]
HELD_OUT = "eval.jsonl"  # in the run directory
VERIFIED_TOKENS = 128  # of the row that the saved and the trained model are compared on


class Method(ABC):
    """One way to train. What stands here suits causal language models; nothing heavy is imported before it is called."""

    name: str  # value of plan.method, and the task that rows are read for
    script: str
    learning_rate: dict[str, float]  # default by mode
    texts = 1  # token sequences a row
    measures: dict[str, str]  # {key of metrics.before and metrics.after: key in the trainer's log}
    labels: dict[str, str]  # {the same key: its name in the model card}
    panels: dict[str, str]  # {key in the trainer's log: axis of its curve}; `eval_` before it gives the held-out points
    logged: tuple[str, ...] = ()  # keys of the trainer's log to keep in metrics.jsonl beside those of every method

    @abstractmethod
    def objective(self, args: Namespace, mode: str, start: Start) -> dict:
        """What plan.objective holds: the settings that only this method has. Raises Failure (exit 2)."""

    @abstractmethod
    def encode(self, rows: Iterable[Row], renderer: Renderer, tokenizer: RowTokenizer, args: Namespace) -> EncodedSet:
        """Rows as ids and masks; overlong ones as --overlong says. Raises Failure (exit 3)."""

    def advice(self, args: Namespace, start: Start, described: Model, train: EncodedSet) -> list[Problem]:
        """Warnings about settings and data of this method, before anything is loaded."""
        return []

    def load_model(self, plan: Plan, source: str, trust_remote_code: bool):
        """The model that training starts from. Raises Failure."""
        if plan.backend == "unsloth":
            from gemma_trainer.train import engine_unsloth

            return engine_unsloth.load_model(plan, source, trust_remote_code)
        from gemma_trainer.models.load import load_model

        return load_model(source, **loading(plan), trust_remote_code=trust_remote_code)

    @abstractmethod
    def build_trainer(self, model, tokenizer, prepared: Prepared, folder: Path, report_to: str, callbacks: list):
        """TRL's trainer of this method over the encoded rows. Raises Failure (exit 5)."""

    def measure(self, trainer) -> dict:
        """The measures on the held-out rows, None where there are none or the method could not tell."""
        logged = {} if trainer.eval_dataset is None else trainer.evaluate()
        return {name: logged.get(key) for name, key in self.measures.items()}

    def measured(self, line: dict, step: int) -> dict | None:
        """The measures that the end of the last epoch has just logged."""
        if line.get("step") != step or "eval_loss" not in line:
            return None
        return {name: line.get(key) for name, key in self.measures.items()}

    def save(self, model, tokenizer, prepared: Prepared, folder: Path, weights: dict | None) -> None:
        """`weights` are given of a model that is split among processes."""
        from gemma_trainer.train.save import save_result

        stops = [prepared.tokenizer.backend.token_to_id(stop) for stop in prepared.renderer.family.stop_tokens]
        save_result(model, tokenizer, folder, [i for i in stops if i is not None], weights)

    def verify(self, model, prepared: Prepared, folder: Path, weights: dict | None) -> dict:
        """Reopen what was saved and compare. Raises Failure (exit 1)."""
        if weights is not None:
            from gemma_trainer.train.sharded import verify_weights

            return verify_weights(model, weights, folder)
        from gemma_trainer.train.verify import verify_adapter, verify_model

        ids = self.sample(prepared)[:VERIFIED_TOKENS]
        if prepared.plan.mode == "full":
            return verify_model(model, folder, ids, self.reopen)
        return verify_adapter(model, folder, ids)

    def reopen(self, folder: Path, dtype: str):
        """The full model that was saved, on the CPU."""
        from gemma_trainer.models.load import load_model

        return load_model(str(folder), dtype=dtype, device="cpu")

    def sample(self, prepared: Prepared) -> list[int]:
        """Ids of a trained row."""
        return prepared.train.rows[0].ids

    def findings(self, plan: Plan, lines: list[dict]) -> list[Problem]:
        """Warnings about how the run went, from the lines of metrics.jsonl."""
        return []

    def loading_code(self, plan: Plan) -> str:
        """Python for the model card that loads the result; `{folder}` stands for the run directory."""
        from gemma_trainer.train.card import loading_code

        return loading_code(plan.mode == "full")

    @abstractmethod
    def next_commands(self, folder: Path, plan: Plan) -> list[str]:
        """What to run on a finished run."""

    @abstractmethod
    def summary(self, metrics: dict) -> str:
        """The measures in a line, for people."""


def loading(plan: Plan) -> dict:
    """How a plan's model is loaded."""
    return {
        "dtype": plan.dtype,
        "device": plan.device,
        "quantize": plan.mode == "qlora",
        "split": plan.parallel == "fsdp",
    }


def tuned_flags(folder: Path, plan: Plan) -> tuple[str, Path]:
    """The flag and the folder by which evaluate.py finds the result of a run."""
    return ("--model" if plan.mode == "full" else "--adapter"), folder


def moved(before: float | None, after: float, form: str = ".4f") -> str:
    """A measure before and after training; a model that is split among processes is measured after it only."""
    return f"{after:{form}}" if before is None else f"{before:{form}} -> {after:{form}}"
