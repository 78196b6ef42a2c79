"""What the tokenizer gave is read again where nothing that decides it has changed, and nowhere else."""

from __future__ import annotations

import os
import shutil

import pytest

from gemma_trainer.data.encode import RowTokenizer
from gemma_trainer.data.options import Row
from gemma_trainer.data.render import Renderer
from gemma_trainer.families.catalogue import get_family
from gemma_trainer.families.template import Template
from gemma_trainer.train import encoded_cache
from gemma_trainer.train.pairs import encode_pairs
from gemma_trainer.train.rows import BATCH, encode_rows
from training import make_tiny, pair_rows, question_rows

COUNT = 40


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder of cached rows; every batch is worth it."""
    monkeypatch.setenv("GEMMA_TRAINER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(encoded_cache, "WORTH", 0)
    return tmp_path / "cache" / "encoded"


@pytest.fixture
def tokenised(monkeypatch):
    """The sizes of the batches that a tokenizer was given."""
    sizes, encode = [], RowTokenizer.encode_batch
    monkeypatch.setattr(RowTokenizer, "encode_batch", lambda self, rows: sizes.append(len(rows)) or encode(self, rows))
    return sizes


def loaded(rows):
    return [Row(row, "rows.jsonl", at, at) for at, row in enumerate(rows, start=1)]


def encoded(tiny, rows=None, renderer=None, tokenizer=None, loss_on="assistant", max_length=512, overlong="drop"):
    rows = loaded(rows or question_rows(COUNT))
    # A new tokenizer each time, as in a new process.
    tokenizer = tokenizer or RowTokenizer.from_dir(tiny.path)
    limits = {"loss_on": loss_on, "max_length": max_length, "overlong": overlong}
    return encode_rows(rows, renderer or tiny.renderer, tokenizer, **limits)


def test_the_second_time_nothing_is_tokenised(tiny, tokenised):
    first, second = encoded(tiny), encoded(tiny)
    assert tokenised == [COUNT]
    assert first == second and first.rows[0].ids == tiny.encode(question_rows(1))[0].ids


def test_pairs_are_kept_too(tiny, tokenised):
    sets = [
        encode_pairs(
            loaded(pair_rows(8)), tiny.renderer, RowTokenizer.from_dir(tiny.path), max_length=99, overlong="drop"
        )
        for _ in range(2)
    ]
    assert tokenised == [16] and sets[0] == sets[1]


def test_what_is_cut_or_dropped_is_decided_anew(tiny, tokenised):
    for limit, overlong in ((512, "drop"), (20, "truncate"), (20, "drop")):
        found = encoded(tiny, max_length=limit, overlong=overlong)
        assert found.longest <= limit and (found.overlong > 0) == (limit == 20)
    assert tokenised == [COUNT]


def test_each_part_of_the_key_is_a_miss(tiny, tokenised, tmp_path, monkeypatch):
    encoded(tiny)
    rows = question_rows(COUNT)
    rows[7]["messages"][1]["content"] += "."
    other = shutil.copytree(tiny.path, tmp_path / "other")
    (other / "tokenizer.json").write_text((other / "tokenizer.json").read_text("utf-8") + "\n", "utf-8")
    family = get_family("gemma3")
    template = Template(family.plain_template.replace("<end_of_turn>\\n", "<end_of_turn>\\n\\n"))
    # The text is the same for both, and what carries loss is not.
    agent = [{"messages": [*row["messages"], *row["messages"]]} for row in question_rows(COUNT)]
    encoded(tiny, agent)
    changes = [
        {"rows": rows},
        {"rows": question_rows(COUNT + 1)},
        {"rows": question_rows(COUNT)[::-1]},
        {"tokenizer": RowTokenizer.from_dir(other)},
        {"renderer": Renderer(family, template)},
        {"rows": agent, "loss_on": "last"},
    ]
    for at, change in enumerate(changes, start=1):
        found = encoded(tiny, **change)
        assert len(tokenised) == 2 + at, change
        assert found == encoded(tiny, **change) and len(tokenised) == 2 + at
    monkeypatch.setattr(encoded_cache, "VERSION", b"other")
    encoded(tiny)
    assert len(tokenised) == 3 + len(changes)


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "foreign", "another", "folder"])
def test_a_damaged_file_is_written_anew(damage, tiny, tokenised, cache):
    encoded(tiny, question_rows(COUNT - 1))
    (other,) = cache.iterdir()
    another = other.read_bytes()
    other.unlink()
    tokenised.clear()
    good = encoded(tiny)
    (file,) = cache.iterdir()
    content = file.read_bytes()
    changed = content[:-9] + b"\1" + content[-8:]
    spoilt = {"empty": b"", "cut": content[:-9], "changed": changed, "foreign": b"x" * 500, "another": another}
    if damage == "folder":
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes(spoilt[damage])
    assert encoded(tiny) == good and len(tokenised) == 2
    if damage != "folder":
        assert file.read_bytes() == content and list(cache.iterdir()) == [file]


def test_a_cache_that_cannot_be_written_is_done_without(tiny, tokenised, cache):
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    assert encoded(tiny) == encoded(tiny) and tokenised == [COUNT, COUNT]


def test_the_files_longest_unused_go_first(tiny, tokenised, cache, monkeypatch):
    for number in (1, 2):
        encoded(tiny, question_rows(COUNT)[number:])
    old, new = sorted(cache.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for at, path in enumerate((old, new)):
        os.utime(path, (at, at))
    encoded(tiny, question_rows(COUNT)[1:])  # the older one is used again
    monkeypatch.setattr(encoded_cache, "LIMIT", int(2.5 * old.stat().st_size))
    encoded(tiny, question_rows(COUNT)[3:])
    assert old.exists() and not new.exists() and len(list(cache.iterdir())) == 2


def test_rows_that_are_added_leave_whole_batches_as_they_are(tiny, tokenised, monkeypatch):
    from gemma_trainer.train import rows

    assert BATCH > 100
    monkeypatch.setattr(rows, "BATCH", 16)
    encoded(tiny)
    encoded(tiny, question_rows(COUNT + 3))
    assert tokenised == [16, 16, 8, 11]


def test_few_rows_are_not_kept(tiny, tokenised, cache, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("GEMMA_TRAINER_CACHE", str(cache.parent))
    encoded(tiny)
    assert not cache.exists()
