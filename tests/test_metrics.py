"""Scores of answers, and what a hostile or broken query may not do."""

import sqlite3
import time

import pytest

from gemma_trainer.evaluate import metrics
from gemma_trainer.evaluate.metrics import exact_match, similarity, sql_match

SCHEMA = """
CREATE TABLE users(id INTEGER, name TEXT, age INTEGER, pay REAL);
INSERT INTO users VALUES (1, 'Ann', 30, 1.5), (2, 'Ben', 40, 2.5), (3, 'Eva', 30, NULL);
"""
ENDLESS = "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c) "


def test_exact_match_ignores_space_around_but_not_inside():
    assert exact_match(" SELECT 1\n", "SELECT 1")
    assert not exact_match("SELECT  1", "SELECT 1")
    assert not exact_match("", "SELECT 1")


@pytest.mark.parametrize(("prediction", "ratio"), [("abcd", 1.0), ("", 0.0), ("abXX", 0.5)])
def test_similarity_is_the_difflib_ratio(prediction, ratio):
    assert similarity(prediction, "abcd") == ratio


def test_similarity_has_no_popularity_cut():
    assert similarity("a" * 500 + "b", "a" * 500) > 0.99


@pytest.mark.parametrize(
    ("prediction", "target"),
    [
        ("SELECT name FROM users;", "SELECT name FROM users"),
        ("select u.name as n from users u", "SELECT name FROM users"),
        ("SELECT name FROM users ORDER BY id DESC", "SELECT name FROM users"),  # the target asks for no order
        ("SELECT name FROM users WHERE age IN (40)", "SELECT name FROM users WHERE age > 35"),
        ("SELECT SUM(age) / 3.0 FROM users", "SELECT AVG(age) FROM users"),
        ("SELECT 2", "SELECT 2.0"),
        ("SELECT 0.1 + 0.2", "SELECT 0.3"),
        ("SELECT name, pay FROM users", "SELECT name, pay FROM users"),  # with a NULL
        (
            "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c LIMIT 3) SELECT i FROM c",
            "SELECT id FROM users",
        ),
    ],
)
def test_equal_results_match(prediction, target):
    assert sql_match(prediction, target, SCHEMA) is True


@pytest.mark.parametrize(
    ("prediction", "target"),
    [
        ("SELECT age FROM users WHERE id < 3", "SELECT age FROM users"),
        ("SELECT DISTINCT age FROM users", "SELECT age FROM users"),  # a multiset keeps count
        ("SELECT name, id FROM users", "SELECT id, name FROM users"),
        ("SELECT name FROM users ORDER BY id DESC", "SELECT name FROM users ORDER BY id"),
        ("SELECT '2'", "SELECT 2"),
        ("SELECT 1000000001", "SELECT 1000000002"),
        ("SELECT name FROM users WHERE 0", "SELECT name FROM users"),
        ("SELECT name FROM users", "SELECT name FROM users WHERE 0"),
    ],
)
def test_different_results_do_not_match(prediction, target):
    assert sql_match(prediction, target, SCHEMA) is False


@pytest.mark.parametrize(
    "prediction",
    [
        *("", "   ", "-- nothing", "Sure! Here it is", "SELECT", "SELECT nope FROM users"),
        *("SELECT \x00", "SELECT '\ud800'", "SELECT * FROM " + "(" * 5000, "SELECT CAST(x'ff' AS TEXT)"),
    ],
)
def test_a_prediction_that_is_no_query_is_a_miss(prediction):
    assert sql_match(prediction, "SELECT name FROM users", SCHEMA) is False


@pytest.mark.parametrize(
    "empty", ["SELECT name FROM users WHERE age > 99", "SELECT SUM(age) FROM users WHERE age > 99"]
)
def test_empty_equals_empty_is_refused(empty):
    assert sql_match(empty, "SELECT name FROM users WHERE 0", SCHEMA) == "both-empty"
    assert sql_match("no query", empty, SCHEMA) is False


@pytest.mark.parametrize(
    ("target", "schema"),
    [
        ("SELECT nope FROM users", SCHEMA),
        ("DELETE FROM users", SCHEMA),
        ("SELECT 1", "CREATE TABLE ("),
        ("SELECT 1", "ATTACH ':memory:' AS b"),
        ("SELECT 1", "PRAGMA journal_mode=wal"),
        ("SELECT 1", f"CREATE TABLE t(x); INSERT INTO t {ENDLESS} SELECT i FROM c"),
    ],
)
def test_a_row_that_fails_itself_is_told_apart(target, schema):
    assert sql_match("SELECT 1", target, schema) == "gold-broken"


def test_a_schema_without_data_proves_nothing():
    assert sql_match("SELECT a FROM t", "SELECT b FROM t", "CREATE TABLE t(a, b)") == "both-empty"


WRITES = [
    "DELETE FROM users",
    "UPDATE users SET age = 1",
    "INSERT INTO users VALUES (4, 'X', 1, 1) RETURNING name",
    "DROP TABLE users",
    "CREATE TABLE other(a)",
    "CREATE TEMP VIEW v AS SELECT 1",
    "PRAGMA writable_schema = 1",
    "SELECT * FROM pragma_database_list",
    "BEGIN",
    "SELECT 1; SELECT 2",
    "SELECT name FROM users; DROP TABLE users",
    "SELECT load_extension('evil')",
]


@pytest.mark.parametrize("prediction", WRITES)
def test_queries_only_read(prediction):
    assert sql_match(prediction, "SELECT name FROM users", SCHEMA) is False
    assert sql_match("SELECT 1", prediction, SCHEMA) == "gold-broken"


@pytest.mark.parametrize("statement", ["ATTACH DATABASE '{}' AS x", "VACUUM INTO '{}'", "VACUUM main INTO '{}'"])
def test_no_file_is_touched(tmp_path, statement):
    attack = statement.format(tmp_path / "out.db")
    assert sql_match(attack, "SELECT name FROM users", SCHEMA) is False
    assert sql_match("SELECT 1", "SELECT 1", SCHEMA + attack + ";") == "gold-broken"
    assert list(tmp_path.iterdir()) == []


COSTLY = [
    ENDLESS + "SELECT COUNT(*) FROM c",
    ENDLESS + "SELECT i FROM c",
    ENDLESS + "SELECT group_concat(i) FROM c",
    "WITH RECURSIVE c(s) AS (SELECT 'ab' UNION ALL SELECT s || s FROM c) SELECT s FROM c",
    "SELECT zeroblob(1000000000)",
    "SELECT printf('%1000000000d', 1)",
    "SELECT a.id FROM " + ", ".join(f"users {c}" for c in "abcdefghijklmnopqrstu") + " ORDER BY 1",
]


@pytest.mark.parametrize("prediction", COSTLY)
def test_costly_queries_end_soon_as_a_miss(prediction):
    begun = time.monotonic()
    assert sql_match(prediction, "SELECT name FROM users", SCHEMA) is False
    assert time.monotonic() - begun < 2 * metrics.MAX_SECONDS


def test_large_results_are_cut(monkeypatch):
    monkeypatch.setattr(metrics, "MAX_ROWS", 2)
    assert sql_match("SELECT name FROM users", "SELECT 1", SCHEMA) is False
    monkeypatch.setattr(metrics, "MAX_ROWS", 3)
    assert sql_match("SELECT name FROM users", "SELECT name FROM users", SCHEMA) is True


@pytest.mark.parametrize(
    ("query", "ordered"),
    [
        ("SELECT a FROM t ORDER  BY a", True),
        ("select a from t\norder by a limit 2", True),
        ("SELECT a FROM t WHERE b IN (SELECT b FROM u ORDER BY c)", False),
        ("SELECT a, ROW_NUMBER() OVER (PARTITION BY (b) ORDER BY c) FROM t", False),
        ("SELECT 'order by' FROM t -- order by a", False),
        ('SELECT "order by" FROM t', False),
    ],
)
def test_only_the_outermost_order_counts(query, ordered):
    assert metrics._orders(query) is ordered


def test_the_prediction_cannot_change_what_the_target_sees():
    assert sql_match("UPDATE users SET name = 'x'", "SELECT name FROM users", SCHEMA) is False
    assert sqlite3.connect(":memory:").execute("SELECT 1").fetchone() == (1,)
