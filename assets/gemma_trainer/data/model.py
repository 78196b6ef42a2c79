"""What the rows are rendered and counted with: a model's own tokenizer and template, or the packaged description."""

from __future__ import annotations

from dataclasses import dataclass, field

from gemma_trainer.data.encode import RowTokenizer
from gemma_trainer.data.guessed import GuessedTokenizer
from gemma_trainer.data.options import DEFAULT_FAMILY
from gemma_trainer.data.render import Renderer
from gemma_trainer.families.catalogue import FAMILIES, get_family, revision
from gemma_trainer.families.checkpoints import find_checkpoint
from gemma_trainer.families.family import Family
from gemma_trainer.families.template import Template
from gemma_trainer.rows.problems import USAGE, Failure


@dataclass
class Model:
    """`tokenizer` is None without a model. `origin` says where the family was taken from."""

    family: Family
    origin: str
    renderer: Renderer
    tokenizer: RowTokenizer | None = None
    config: dict = field(default_factory=dict)  # config.json of the model, empty when unknown
    chats: bool = True  # it came with a chat template, or its released files do
    reference: str | None = None  # --model

    @property
    def note(self) -> str | None:
        """What a reader of the result should know about the family and the rendering."""
        if not self.chats:
            return f"the model has no chat template: the plain one of {self.family.title} is followed"
        if self.renderer.template is not None:
            return self._template_note
        asked = "" if self.origin == "asked for" else f" ({self.origin}; pass --family or --model)"
        return f"no --model given: checks and texts follow the packaged description of {self.family.title}{asked}"

    @property
    def _template_note(self) -> str | None:
        found = revision(self.family, self.renderer.template)
        if found in (self.family.current_revision, "plain"):
            return None
        what = f"revision {found} of" if found else "no known revision of"
        title, same = self.family.title, "it is followed as it is; serve the model with the same one"
        return (
            f"the model's chat template is {what} {title}'s (the current one is {self.family.current_revision}): {same}"
        )


def describe_model(family: str, model: str | None, network: bool = True) -> Model:
    """From --family and --model. Raises Failure when the model cannot be read or does not tell its family."""
    if model is None:
        origin = "assumed, the current generation" if family == "auto" else "asked for"
        chosen = get_family(DEFAULT_FAMILY if family == "auto" else family)
        return Model(chosen, origin, Renderer(chosen))
    from gemma_trainer.data.tokens import load_tokenizer

    tokenizer, template, facts = load_tokenizer(model, network)
    kind = facts.config.get("model_type")
    if kind is not None and not any(kind in known.model_types for known in FAMILIES.values()):
        raise Failure(USAGE, "family-unknown", f"{model} is a `{kind}` model, not a Gemma that can be tuned here")
    chosen = _chosen(family, facts.family, model)
    origin = "told by the model" if family == "auto" else "asked for"
    renderer = Renderer(chosen, template or plain_template(chosen))
    return Model(chosen, origin, renderer, tokenizer, facts.config, template is not None, model)


def plain_template(family: Family) -> Template:
    """What renders for a model without a chat template: the very one that is saved with a result."""
    return Template(family.plain_template)


def describe_released(family: str, model: str) -> Model | None:
    """What is known of a released model whose files are not here: the current template, sizes of the catalogue, and
    guessed lengths. None for any other model."""
    checkpoint = find_checkpoint(model)
    if checkpoint is None:
        return None
    chosen = _chosen(family, get_family(checkpoint.family), model)
    base = model.rsplit("/", 1)[-1].lower() == (checkpoint.base or "").rsplit("/", 1)[-1].lower()
    renderer = Renderer(chosen, plain_template(chosen) if base else None)
    return Model(chosen, "told by the name", renderer, GuessedTokenizer(), checkpoint.config, not base, model)


def _chosen(family: str, told: Family | None, model: str) -> Family:
    """Raises Failure (exit 2) when nothing tells the family, or --family is another one."""
    chosen = told if family == "auto" else get_family(family)
    if chosen is None:
        raise Failure(USAGE, "family-unknown", f"nothing in {model} tells its Gemma family", fix="Pass --family.")
    if told and told.turn_start != chosen.turn_start:
        text = f"--family {chosen.name} does not fit {model}, which is {told.title}"
        raise Failure(USAGE, "family-unknown", text, fix="Drop --family.")
    return chosen
