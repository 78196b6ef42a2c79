"""--demo: before and after on held-out rows, and a run directory like any other."""

import json

import jsonschema
import pytest

from scripts import ASSETS, run


@pytest.mark.slow
@pytest.mark.main_path
def test_the_demo_measures_before_and_after(tmp_path):
    done = run("sft_train.py", "--demo", "--max-steps", "60", "--json", cwd=tmp_path)
    assert done.code == 0, done.stdout
    result = done.json["result"]
    for side in (result, result["unseen_tables"]):
        assert {"exact_match", "similarity", "sql_match", "loss"} <= side["before"].keys() & side["after"].keys()
    assert result["before"]["exact_match"] == 0.0 and result["after"]["loss"] < result["before"]["loss"] / 2
    assert result["before"]["sql_gold_broken"] == result["before"]["sql_both_empty"] == 0
    record = json.loads((tmp_path / "runs" / "demo" / "run.json").read_text())
    jsonschema.validate(record, json.loads((ASSETS / "schemas" / "run.json").read_text()))
    assert record["metrics"]["after"] == result["after"] and record["status"] == "done"
    card = (tmp_path / "runs" / "demo" / "README.md").read_text()
    assert "SQL result match" in card
    again = run("sft_train.py", "--demo", "--plan", "--json", cwd=tmp_path)
    assert again.code == 0 and again.json["result"]["plan"]["mode"] == "full"
