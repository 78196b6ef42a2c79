"""The skill itself: valid by the specification, short, and never naming what does not exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SKILL = (ROOT / "SKILL.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
PAGES = [ROOT / "SKILL.md", ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "references").glob("*.md"))]


def test_front_matter_is_valid(tmp_path):
    validate = pytest.importorskip("skills_ref", reason="skills-ref needs Python 3.11").validate
    (tmp_path / "gemma-trainer").symlink_to(ROOT)
    assert validate(tmp_path / "gemma-trainer") == []


def test_description_is_one_plain_line_and_the_body_short():
    description = re.search(r"^description: (.+)$", SKILL, re.M).group(1)
    assert 100 < len(description) <= 1024 and not description.startswith((">", "|", '"'))
    assert len(SKILL.splitlines()) < 200 and len(SKILL) < 4 * 5000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_scripts_and_flags_that_are_named_exist(page):
    """Every `--flag` behind a script's name on the same line is one of its flags."""
    for line in page.read_text("utf-8").splitlines():
        for script, rest in re.findall(r"(?:assets/)([a-z]\w+\.py)([^`]*)", line):
            assert (ROOT / "assets" / script).exists(), script
            missing = [flag for flag in re.findall(r"--[a-z][a-z-]+", rest) if flag not in flags(script, rest)]
            assert missing == [], f"{page.name}: {line}"


def flags(script: str, rest: str) -> str:
    action = re.match(r"\s+([a-z-]+)", rest)
    words = [action.group(1)] if action and script in ("dataset_prep.py", "distill_dataset.py") else []
    return subprocess.run(
        [sys.executable, ROOT / "assets" / script, *words, "--help"], capture_output=True, text=True
    ).stdout


def test_reference_pages_are_short_enough_to_read():
    assert [
        page.name for page in (ROOT / "references").glob("*.md") if len(page.read_text("utf-8").splitlines()) > 200
    ] == []


def test_ci_runs_the_readme_s_test_command():
    extract = re.search(r"^test_command=\$\((.*)\)$", (ROOT / ".ci" / "run").read_text(), re.M).group(1)
    found = subprocess.run(["bash", "-c", extract], cwd=ROOT, capture_output=True, text=True).stdout
    assert found.strip().endswith('-m "not heavy"') and "-m pytest " in found and found.strip() in README


def test_the_two_sets_of_versions_fit_the_ranges():
    from importlib.metadata import version

    from packaging.requirements import Requirement

    project = (ROOT / "pyproject.toml").read_text()
    ranges = {
        r.name: r.specifier for r in map(Requirement, re.findall(r'^  "([a-z][^"\n;]*[\d<>=].*?)[";]', project, re.M))
    }
    for file in (ROOT / "constraints").glob("*.txt"):
        pins = [Requirement(line) for line in file.read_text().splitlines() if line and not line.startswith("#")]
        assert len(pins) > 10
        for pin in pins:
            if pin.name in ranges:
                number = next(iter(pin.specifier)).version
                assert ranges[pin.name].contains(number), f"{file.name}: {pin}"
    assert version("packaging")
