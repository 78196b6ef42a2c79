"""How people ask: the phrasings of each question kind, one a line.

{t} tables, {a} {b} columns to show, {n} a number column, {c} a text column, {v} {w} values,
{k} {m} numbers, {f} an aggregate or a comparison in words, {p} the parent table.
"""

from __future__ import annotations

import re

_TEXT = """
select
  List the {a} of all {t}.
  Show the {a} of the {t}.
  What is the {a} of each of the {t}?
  Give me the {a} for all {t}.
select_two
  List the {a} and {b} of all {t}.
  Show {a} and {b} for the {t}.
  What are the {a} and the {b} of the {t}?
compare >
  Show the {a} of {t} with {n} above {k}.
  What is the {a} of the {t} whose {n} is greater than {k}?
  List the {a} of {t} with more than {k} {n}.
compare <
  Show the {a} of {t} with {n} below {k}.
  What is the {a} of the {t} whose {n} is less than {k}?
  List the {a} of {t} with less than {k} {n}.
compare >=
  Show the {a} of {t} with {n} of at least {k}.
  List the {a} of {t} with {n} {k} or more.
compare <=
  Show the {a} of {t} with {n} of at most {k}.
  List the {a} of {t} with {n} {k} or less.
equals
  Show the {a} of {t} whose {c} is {v}.
  What is the {a} of the {t} with {c} {v}?
  Give the {a} for {t} where the {c} is {v}.
differs
  Show the {a} of {t} whose {c} is not {v}.
  List the {a} of all {t} except those with {c} {v}.
  Give the {a} for {t} where the {c} is anything but {v}.
both
  Which {t} have {c} {v} and {n} above {k}?
  Name the {t} with {c} {v} and {n} over {k}.
  Find {t} whose {c} is {v} and whose {n} is above {k}.
either
  Which {t} have {c} {v} or {n} below {k}?
  Name the {t} with {c} {v} or {n} under {k}.
  Find {t} whose {c} is {v} or whose {n} is below {k}.
count
  How many {t} are there?
  Count the {t}.
  What is the number of {t}?
  Give the total number of {t}.
  How many {t} do we have?
count_where
  How many {t} have {c} {v}?
  Count the {t} whose {c} is {v}.
  What is the number of {t} with {c} {v}?
aggregate
  What is the {f} {n} of the {t}?
  Find the {f} {n} of all {t}.
  Give the {f} {n} over all {t}.
aggregate_where
  What is the {f} {n} of {t} with {c} {v}?
  Find the {f} {n} of {t} whose {c} is {v}.
  Give the {f} {n} over all {t} where the {c} is {v}.
group_count
  How many {t} are there per {c}?
  Count the {t} for each {c}.
  Show the number of {t} by {c}.
group_aggregate
  What is the {f} {n} of {t} per {c}?
  Show the {f} {n} of the {t} for each {c}.
  Give the {f} {n} of {t} by {c}.
having
  Which {c} has more than {k} {t}?
  Find each {c} with more than {k} {t}.
  List every {c} that occurs in more than {k} {t}.
order
  List the {a} of the {t} sorted by {n}.
  Show the {a} of all {t} from lowest to highest {n}.
  Give the {a} of the {t} in order of {n}.
order DESC
  List the {a} of the {t} sorted by {n} descending.
  Show the {a} of all {t} from highest to lowest {n}.
  Give the {a} of the {t} in reverse order of {n}.
top
  Name the {k} {t} with the lowest {n}.
  Which {k} {t} have the smallest {n}?
  Show the bottom {k} {t} by {n}.
top DESC
  Name the {k} {t} with the highest {n}.
  Which {k} {t} have the largest {n}?
  Show the top {k} {t} by {n}.
like start
  Show the {a} of {t} whose {c} starts with {v}.
  List the {a} of {t} with a {c} beginning with {v}.
like end
  Show the {a} of {t} whose {c} ends with {v}.
  List the {a} of {t} with a {c} ending in {v}.
between
  Show the {a} of {t} with {n} between {k} and {m}.
  List the {a} of {t} whose {n} is from {k} to {m}.
  Give the {a} for {t} with a {n} in the range {k} to {m}.
distinct
  Which different {c} values do the {t} have?
  List each {c} of the {t} once.
  Show the distinct {c} of all {t}.
  What are the unique {c} values of {t}?
count_distinct
  How many different {c} values do the {t} have?
  Count the distinct {c} of the {t}.
  What is the number of unique {c} values of {t}?
one_of
  Show the {a} of {t} whose {c} is {v} or {w}.
  List the {a} of {t} with {c} {v} or {w}.
  Give the {a} for {t} where the {c} is one of {v} and {w}.
missing
  Which {t} have no {c}?
  Name the {t} without a {c}.
  List the {t} whose {c} is missing.
missing NOT
  Which {t} have a {c}?
  Name the {t} with a known {c}.
  List the {t} whose {c} is given.
extreme
  Which of the {t} has the {f} {n}?
  Name the one of the {t} with the {f} {n}.
  Find the {t} with the {f} {n} of all.
above_average
  Which {t} have a {n} {f} average?
  Name the {t} whose {n} is {f} the average.
  Find {t} with {n} {f} the mean.
join
  Show the {a} of {t} with the {b} of their {p}.
  List the {a} of all {t} together with the {b} of the {p}.
  For each of the {t}, give the {a} and the {b} of the {p}.
join_where
  Show the {a} of {t} whose {p} has {c} {v}.
  List the {a} of the {t} of the {p} with {c} {v}.
  What is the {a} of the {t} where the {c} of the {p} is {v}?
join_count
  How many {t} does each {p} have?
  Count the {t} of each {p}.
  Show the number of {t} per {p}.
without
  Which {p} have no {t}?
  Name the {p} without any {t}.
  List the {p} that have no {t}.
"""


def _read(text: str) -> dict[str, list[str]]:
    phrases: dict[str, list[str]] = {}
    for block in re.split(r"\n(?=\w)", text.strip()):
        kind, *lines = block.splitlines()
        phrases[kind] = [line.strip() for line in lines]
    return phrases


PHRASES = _read(_TEXT)
