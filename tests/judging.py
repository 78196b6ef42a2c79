"""One row through layouts, repairs and checks, and the parts that such rows are made of."""

from __future__ import annotations

from pathlib import Path

from gemma_trainer.data.checking.process import process
from gemma_trainer.data.checking.setting import Setting
from gemma_trainer.data.notes import Notes
from gemma_trainer.data.options import Options
from gemma_trainer.data.render import Renderer
from gemma_trainer.families.catalogue import get_family
from gemma_trainer.rows.codes import CODES
from preparing import GOOD, assistant, call, chat, result, row_validator, user

CASES = Path(__file__).parent / "cases"
SYSTEM = {"role": "system", "content": "Be brief."}
ROUND = [user("Tide?"), assistant(None, tool_calls=[call()]), result(tool_call_id="c1"), assistant("3.2 metres.")]
IMAGE = {"type": "image", "image": "media/dot.png"}
TEXT = {"type": "text", "text": "What is it?"}


def noted(row, family="gemma4", task="sft", folder=CASES, **options) -> tuple[dict | None, Notes]:
    """(canonical row or None, notes) of a raw row."""
    chosen = get_family(family)
    notes = Notes()
    return process(row, Options(task=task, family=chosen, **options), Setting(chosen, folder), notes)[0], notes


def judge(row, family="gemma4", task="sft", **options) -> tuple[dict | None, set[str]]:
    """(canonical row or None, codes of faults and repairs) of a raw row."""
    data, notes = noted(row, family, task, **options)
    return data, {note.code for note in (*notes.found, *notes.repairs)} - {"layout-converted"}


def is_refused(data: dict | None, codes: set[str]) -> bool:
    return data is None or any(CODES[code].severity == "error" for code in codes)


def judged_as(row, family, expected) -> None:
    """The row has these codes; without an error among them it fits the schema and can be rendered."""
    data, told = judge(row, family)
    assert told == expected
    if not is_refused(data, told):
        row_validator("sft").validate(data)
        Renderer(get_family(family)).render(data)


def tool_row(properties: dict, name: str = "f", **parameters: object) -> dict:
    schema = {"type": "object", "properties": properties, **parameters}
    return chat(*GOOD["messages"], tools=[{"type": "function", "function": {"name": name, "parameters": schema}}])


def pair(**changes: object) -> dict:
    return {"prompt": "a", "chosen": "b", "rejected": "c", **changes}
