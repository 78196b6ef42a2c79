"""Run dataset_prep.py inside the test process, which is many times faster than one process a file."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import dataset_prep
from gemma_trainer import cli

SCHEMAS = Path(__file__).parents[1] / "assets" / "schemas"


def prep(*words: object) -> tuple[int, dict]:
    """(exit code, the JSON object on stdout), the object checked against its schema."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        argv = [str(word) for word in words] + ["--json"]
        code = cli.main("dataset_prep.py", dataset_prep.__doc__, dataset_prep.add_arguments, dataset_prep.run, argv)
    document = json.loads(out.getvalue())
    validator("report.json").validate(document)
    if document["result"]:
        validator(f"report.json#/$defs/{words[0]}").validate(document["result"])
    assert document["ok"] == (code == 0)
    return code, document


def validator(reference: str):
    """A validator of one schema in assets/schemas, or of a part of it."""
    from jsonschema import Draft202012Validator
    from referencing import Registry, Resource

    names = ("report", "sft-row", "preference-row", "prompt-row", "tool", "stats")
    loaded = [json.loads((SCHEMAS / f"{name}.json").read_text("utf-8")) for name in names]
    registry = Registry().with_resources((schema["$id"], Resource.from_contents(schema)) for schema in loaded)
    return Draft202012Validator({"$ref": reference}, registry=registry)


def row_validator(task: str):
    return validator({"dpo": "preference-row.json", "rm": "preference-row.json", "prompts": "prompt-row.json"}.get(
        task, "sft-row.json"
    ))  # fmt: skip


def codes(document: dict) -> set[str]:
    return {problem["code"] for problem in document["errors"] + document["warnings"]}


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def user(content: object, **more: object) -> dict:
    return {"role": "user", "content": content, **more}


def assistant(content: object, **more: object) -> dict:
    return {"role": "assistant", "content": content, **more}


def chat(*messages: object, **more: object) -> dict:
    return {"messages": list(messages), **more}


GOOD = chat(user("Name a bread."), assistant("Rye."))
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_tide",
            "description": "Tide height.",
            "parameters": {
                "type": "object",
                "properties": {"station": {"type": "string"}, "hour": {"type": "integer"}},
                "required": ["station"],
            },
        },
    }
]


def call(name: str = "get_tide", arguments: object = None, id: str | None = "c1") -> dict:
    function = {"name": name, "arguments": {"station": "North"} if arguments is None else arguments}
    return {"type": "function", "function": function, **({"id": id} if id else {})}


def result(content: object = "3.2", **more: object) -> dict:
    return {"role": "tool", "content": content, **more}
