"""The question kinds: from drawn tables to a question and its SQL. LookupError when the draw does not fit."""

from __future__ import annotations

import random
from collections.abc import Callable

from phrases import PHRASES
from scene import Shown

Question = tuple[str, str]  # question, SQL
Maker = Callable[..., Question]
SINGLE: dict[str, Maker] = {}  # (rng, table)
JOINED: dict[str, Maker] = {}  # (rng, child, parent)

AGGREGATES = (("AVG", "average"), ("AVG", "mean"), ("SUM", "total"), ("MIN", "lowest"), ("MAX", "highest"))
EXTREMES = (("MAX", "highest"), ("MAX", "largest"), ("MIN", "lowest"), ("MIN", "smallest"))


def single(make: Maker) -> Maker:
    SINGLE[make.__name__] = make
    return make


def joined(make: Maker) -> Maker:
    JOINED[make.__name__] = make
    return make


def ask(rng: random.Random, phrasing: str, table: Shown, **words: object) -> str:
    """One of the phrasings. Words a, b, c, n are names of the table's columns; questions say their terms."""
    terms = {k: table.term(v) if k in "abcn" and v in table.columns else v for k, v in words.items()}
    return rng.choice(PHRASES[phrasing]).format(t=table.table.term, **terms)


def _text(rng: random.Random, t: Shown) -> tuple[str, object]:
    """A text column other than the label, and a value in it."""
    (c,) = t.pick(rng, number=False, label=False)
    return c, rng.choice(t.values(c))


def _number(rng: random.Random, t: Shown) -> tuple[str, object]:
    """A number column, and a value in it with others on both sides."""
    (n,) = t.pick(rng, number=True)
    return n, rng.choice(t.values(n, at_least=3)[1:-1])


@single
def select(rng: random.Random, t: Shown) -> Question:
    (a,) = t.pick(rng)
    return ask(rng, "select", t, a=a), f"SELECT {a} FROM {t.name}"


@single
def select_two(rng: random.Random, t: Shown) -> Question:
    a, b = t.pick(rng, 2)
    return ask(rng, "select_two", t, a=a, b=b), f"SELECT {a}, {b} FROM {t.name}"


@single
def compare(rng: random.Random, t: Shown) -> Question:
    (n, k), (a,), op = _number(rng, t), t.pick(rng), rng.choice([">", "<", ">=", "<="])
    return ask(rng, f"compare {op}", t, a=a, n=n, k=k), f"SELECT {a} FROM {t.name} WHERE {n} {op} {k}"


@single
def equals(rng: random.Random, t: Shown) -> Question:
    (c,) = t.pick(rng, number=False)
    (a,), v = t.pick(rng), rng.choice(t.values(c))
    if a == c:
        raise LookupError("asks for what it knows")
    return ask(rng, "equals", t, a=a, c=c, v=v), f"SELECT {a} FROM {t.name} WHERE {c} = '{v}'"


@single
def differs(rng: random.Random, t: Shown) -> Question:
    (c, v), (a,) = _text(rng, t), t.pick(rng)
    return ask(rng, "differs", t, a=a, c=c, v=v), f"SELECT {a} FROM {t.name} WHERE {c} <> '{v}'"


@single
def both(rng: random.Random, t: Shown) -> Question:
    (c, v), (n, k) = _text(rng, t), _number(rng, t)
    sql = f"SELECT {t.label} FROM {t.name} WHERE {c} = '{v}' AND {n} > {k}"
    return ask(rng, "both", t, c=c, v=v, n=n, k=k), sql


@single
def either(rng: random.Random, t: Shown) -> Question:
    (c, v), (n, k) = _text(rng, t), _number(rng, t)
    sql = f"SELECT {t.label} FROM {t.name} WHERE {c} = '{v}' OR {n} < {k}"
    return ask(rng, "either", t, c=c, v=v, n=n, k=k), sql


@single
def count(rng: random.Random, t: Shown) -> Question:
    return ask(rng, "count", t), f"SELECT COUNT(*) FROM {t.name}"


@single
def count_where(rng: random.Random, t: Shown) -> Question:
    c, v = _text(rng, t)
    return ask(rng, "count_where", t, c=c, v=v), f"SELECT COUNT(*) FROM {t.name} WHERE {c} = '{v}'"


@single
def aggregate(rng: random.Random, t: Shown) -> Question:
    (n,), (function, word) = t.pick(rng, number=True), rng.choice(AGGREGATES)
    return ask(rng, "aggregate", t, f=word, n=n), f"SELECT {function}({n}) FROM {t.name}"


@single
def aggregate_where(rng: random.Random, t: Shown) -> Question:
    (n,), (c, v), (function, word) = t.pick(rng, number=True), _text(rng, t), rng.choice(AGGREGATES)
    sql = f"SELECT {function}({n}) FROM {t.name} WHERE {c} = '{v}'"
    return ask(rng, "aggregate_where", t, f=word, n=n, c=c, v=v), sql


@single
def group_count(rng: random.Random, t: Shown) -> Question:
    c, _ = _text(rng, t)
    return ask(rng, "group_count", t, c=c), f"SELECT {c}, COUNT(*) FROM {t.name} GROUP BY {c}"


@single
def group_aggregate(rng: random.Random, t: Shown) -> Question:
    (n,), (c, _), (function, word) = t.pick(rng, number=True), _text(rng, t), rng.choice(AGGREGATES)
    sql = f"SELECT {c}, {function}({n}) FROM {t.name} GROUP BY {c}"
    return ask(rng, "group_aggregate", t, f=word, n=n, c=c), sql


@single
def having(rng: random.Random, t: Shown) -> Question:
    (c, _), k = _text(rng, t), rng.randint(1, 3)
    sql = f"SELECT {c} FROM {t.name} GROUP BY {c} HAVING COUNT(*) > {k}"
    return ask(rng, "having", t, c=c, k=k), sql


@single
def order(rng: random.Random, t: Shown) -> Question:
    (n,), (a,), way = t.pick(rng, number=True), t.pick(rng), rng.choice(["", " DESC"])
    if a == n:
        raise LookupError("sorted by what it shows")
    return ask(rng, f"order{way}", t, a=a, n=n), f"SELECT {a} FROM {t.name} ORDER BY {n}{way}"


@single
def top(rng: random.Random, t: Shown) -> Question:
    (n,), k, way = t.pick(rng, number=True), rng.randint(2, 4), rng.choice(["", " DESC"])
    return ask(rng, f"top{way}", t, n=n, k=k), f"SELECT {t.label} FROM {t.name} ORDER BY {n}{way} LIMIT {k}"


@single
def like(rng: random.Random, t: Shown) -> Question:
    (a,) = t.pick(rng)
    if rng.random() < 0.7:
        (c,) = t.pick(rng, number=False)
        way, part = "start", str(rng.choice(t.values(c)))[0]
    else:
        c = t.label
        way, part = "end", str(rng.choice(t.values(c)))[-1]
    pattern = {"start": f"{part}%", "end": f"%{part}"}[way]
    return ask(rng, f"like {way}", t, a=a, c=c, v=part), f"SELECT {a} FROM {t.name} WHERE {c} LIKE '{pattern}'"


@single
def between(rng: random.Random, t: Shown) -> Question:
    (n,), (a,) = t.pick(rng, number=True), t.pick(rng)
    k, m = sorted(rng.sample(t.values(n, at_least=2), 2))
    return ask(rng, "between", t, a=a, n=n, k=k, m=m), f"SELECT {a} FROM {t.name} WHERE {n} BETWEEN {k} AND {m}"


@single
def distinct(rng: random.Random, t: Shown) -> Question:
    c, _ = _text(rng, t)
    return ask(rng, "distinct", t, c=c), f"SELECT DISTINCT {c} FROM {t.name}"


@single
def count_distinct(rng: random.Random, t: Shown) -> Question:
    c, _ = _text(rng, t)
    return ask(rng, "count_distinct", t, c=c), f"SELECT COUNT(DISTINCT {c}) FROM {t.name}"


@single
def one_of(rng: random.Random, t: Shown) -> Question:
    (c, _), (a,) = _text(rng, t), t.pick(rng)
    v, w = rng.sample(t.values(c, at_least=2), 2)
    return ask(rng, "one_of", t, a=a, c=c, v=v, w=w), f"SELECT {a} FROM {t.name} WHERE {c} IN ('{v}', '{w}')"


@single
def missing(rng: random.Random, t: Shown) -> Question:
    (c,), negation = t.pick(rng, label=False), rng.choice(["", " NOT"])
    for record in rng.sample(t.records, rng.randint(1, 2)):
        record[c] = None
    return ask(rng, f"missing{negation}", t, c=c), f"SELECT {t.label} FROM {t.name} WHERE {c} IS{negation} NULL"


@single
def extreme(rng: random.Random, t: Shown) -> Question:
    (n,), (function, word) = t.pick(rng, number=True), rng.choice(EXTREMES)
    sql = f"SELECT {t.label} FROM {t.name} WHERE {n} = (SELECT {function}({n}) FROM {t.name})"
    return ask(rng, "extreme", t, f=word, n=n), sql


@single
def above_average(rng: random.Random, t: Shown) -> Question:
    (n,), (op, word) = t.pick(rng, number=True), rng.choice([(">", "above"), ("<", "below")])
    sql = f"SELECT {t.label} FROM {t.name} WHERE {n} {op} (SELECT AVG({n}) FROM {t.name})"
    return ask(rng, "above_average", t, f=word, n=n), sql


def _from(child: Shown, parent: Shown) -> str:
    return f"FROM {child.name} JOIN {parent.name} ON {child.name}.{parent.key} = {parent.name}.id"


@joined
def join(rng: random.Random, child: Shown, parent: Shown) -> Question:
    (a,), (b,) = child.pick(rng), parent.pick(rng)
    question = ask(rng, "join", child, a=a, b=parent.term(b), p=parent.table.singular)
    return question, f"SELECT {child.name}.{a}, {parent.name}.{b} {_from(child, parent)}"


@joined
def join_where(rng: random.Random, child: Shown, parent: Shown) -> Question:
    (a,), (c,) = child.pick(rng), parent.pick(rng, number=False)
    v = rng.choice(parent.values(c))
    question = ask(rng, "join_where", child, a=a, c=parent.term(c), v=v, p=parent.table.singular)
    return question, f"SELECT {child.name}.{a} {_from(child, parent)} WHERE {parent.name}.{c} = '{v}'"


@joined
def join_count(rng: random.Random, child: Shown, parent: Shown) -> Question:
    name = f"{parent.name}.{parent.label}"
    sql = f"SELECT {name}, COUNT(*) {_from(child, parent)} GROUP BY {name}"
    return ask(rng, "join_count", child, p=parent.table.singular), sql


@joined
def without(rng: random.Random, child: Shown, parent: Shown) -> Question:
    keys = f"SELECT {parent.key} FROM {child.name}"
    sql = f"SELECT {parent.label} FROM {parent.name} WHERE id NOT IN ({keys})"
    return ask(rng, "without", child, p=parent.table.term), sql
