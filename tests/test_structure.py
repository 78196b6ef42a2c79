"""The layout that README.md promises: imports go one way, heavy ones stay inside functions, files stay short."""

import ast
from pathlib import Path

import pytest

from gemma_trainer.rows.codes import CODES

LIBRARY = Path(__file__).parents[1] / "assets" / "gemma_trainer"
# A folder imports from those before it.
ORDER = ["rows", "families", "models", "data", "plan", "evaluate", "train", "distill"]
HEAVY = {"torch", "transformers", "datasets", "trl", "peft", "accelerate", "bitsandbytes", "matplotlib"}
FILES = sorted(LIBRARY.rglob("*.py"))


def imports(file: Path, everywhere: bool) -> set[str]:
    """Modules that a file imports, inside functions too or at module level only."""
    tree = ast.parse(file.read_text("utf-8"))
    nodes = ast.walk(tree) if everywhere else tree.body
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(LIBRARY)))
def test_imports_go_one_way(file):
    folder = file.relative_to(LIBRARY).parts[0]
    if folder not in ORDER:
        return  # cli.py, which only scripts and what ends a command import
    theirs = {name.split(".")[1] for name in imports(file, everywhere=True) if name.startswith("gemma_trainer.")}
    allowed = {*ORDER[: ORDER.index(folder) + 1], *(["cli"] if folder in ("evaluate", "train", "distill") else [])}
    assert theirs <= allowed


@pytest.mark.parametrize("folder", ["rows", "families", "data", "plan"])
def test_data_code_imports_nothing_heavy_at_module_level(folder):
    files = list((LIBRARY / folder).rglob("*.py"))
    assert files
    for file in files:
        assert not {name.split(".")[0] for name in imports(file, everywhere=False)} & HEAVY, file


def test_files_are_short_and_need_no_package_files():
    assert [file.name for file in FILES if len(file.read_text("utf-8").splitlines()) > 400] == []
    assert [file for file in FILES if file.name.startswith("_")] == []


def test_every_code_that_is_raised_is_listed():
    """`Failure(exit, code, ...)`, `Problem(code, ...)`, `RenderError(code, ...)` and the notes of the checks."""
    position = {"Failure": 1, "Problem": 0, "RenderError": 0, "Note": 0, "fault": 0, "repair": 0, "Refused": 0}
    used = set()
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", None))
                at = position.get(name)
                if at is not None and len(node.args) > at and isinstance(node.args[at], ast.Constant):
                    used.add(node.args[at].value)
    used = {code for code in used if isinstance(code, str)}
    assert len(used) > 80
    assert used - CODES.keys() == set()
