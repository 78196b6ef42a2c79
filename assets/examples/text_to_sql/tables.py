"""The tables the questions are about: words, columns, value ranges and relations.

One line per table:  term[=name|name]: column, column, ...
A column is  term[=name|name] kind  where kind is a range of whole numbers (10-99) or a pool of words (@city).
Questions use the term, the schema of a row shows one of the names, so the schema has to be read.
The first column is the label of the table. `child > parent` gives the child a column `<parent>_id`.
"""

from __future__ import annotations

import random
import re
from typing import NamedTuple

POOLS = {
    "person": "Ann Ben Carl Dana Eva Finn Gina Hugo",
    "word": "Amber Birch Cedar Delta Ember Frost Grove Haven",
    "city": "Paris Rome Oslo Lima Cairo Delhi Tokyo Quito",
    "country": "France Italy Norway Peru Egypt India Japan Chile",
    "color": "red blue green black white",
    "status": "open closed active pending",
    "style": "classic modern rustic urban",
    "material": "wood steel glass cotton",
    "day": "Monday Tuesday Friday Sunday",
    "level": "low medium high",
}

SEEN = """
employees=employees|staff: name @person, salary=salary|pay 20-95, age 20-65, city=city|town @city, level @level
customers=customers|clients: name @person, age 20-80, city=city|town @city, points 100-900, status @status
orders: code @word, price=price|cost 10-95, quantity 10-40, day @day, status @status
products: name @word, price=price|cost 10-95, stock 10-90, color=color|colour @color, material @material
suppliers: name @word, country=country|nation @country, rating=rating|score 10-95, year 1990-2020
books: title @word, pages 100-600, price=price|cost 10-95, year 1950-2020, style @style
authors: name @person, country=country|nation @country, age 25-90, awards 10-40
movies=movies|films: title @word, year 1960-2020, rating=rating|score 10-95, budget 10-95, style @style
directors: name @person, age 25-80, country=country|nation @country, awards 10-40
songs: title @word, duration 100-400, plays 100-900, style @style, year 1970-2020
artists: name @person, country=country|nation @country, fans 100-900, age 20-80
players: name @person, goals 10-60, age 20-40, height 100-250, level @level
teams: name @word, city=city|town @city, points 100-900, year 1900-2020, color=color|colour @color
students: name @person, age 10-30, marks 10-95, level @level, city=city|town @city
schools: name @word, city=city|town @city, capacity 100-900, rating=rating|score 10-95
courses: title @word, hours 10-90, fee 10-90, day @day, level @level
teachers: name @person, age 25-70, salary=salary|pay 20-95, city=city|town @city
flights: code @word, distance 100-900, price=price|cost 10-95, day @day, status @status
airlines: name @word, country=country|nation @country, planes 100-300, rating=rating|score 10-95
hotels: name @word, city=city|town @city, rating=rating|score 10-95, price=price|cost 10-95, year 1900-2020
rooms: code @word, beds 10-40, price=price|cost 10-95, area 20-95, status @status
pets: name @word, age 10-20, weight 10-95, color=color|colour @color
owners: name @person, age 20-90, city=city|town @city, phone 100-950
doctors=doctors|physicians: name @person, age 30-70, salary=salary|pay 20-95, level @level
patients: name @person, age 10-95, weight 10-95, city=city|town @city, status @status
cars=cars|vehicles: name @word, price=price|cost 10-95, speed 100-300, year 1990-2020, color=color|colour @color
shops=shops|stores: name @word, city=city|town @city, area 20-95, rent 10-90, style @style
houses=houses|homes: name @word, price=price|cost 10-95, area 20-95, year 1900-2020, city=city|town @city
tasks: title @word, hours 10-90, level @level, status @status, day @day
projects: title @word, budget 10-95, year 2000-2020, status @status, hours 10-90
countries: name @country, population 100-900, area 20-95, cities 10-90
rivers: name @word, length 100-900, depth 10-90, country=country|nation @country
mountains: name @word, height 100-250, country=country|nation @country, climbers 10-90
trains: name @word, speed 100-300, capacity 100-900, city=city|town @city, day @day
games: title @word, price=price|cost 10-95, players 10-40, year 1980-2020, rating=rating|score 10-95
recipes: title @word, minutes 10-90, calories 100-900, country=country|nation @country, level @level
museums: name @word, city=city|town @city, visitors 100-900, price=price|cost 10-95, style @style
paintings: title @word, year 1600-2020, price=price|cost 10-95, width 10-95, style @style
phones: name @word, price=price|cost 10-95, weight 10-95, color=color|colour @color, year 2010-2020
chairs: name @word, price=price|cost 10-95, weight 10-95, material @material, color=color|colour @color
bags: name @word, price=price|cost 10-95, stock 10-90, material @material, color=color|colour @color
bridges: name @word, length 100-900, year 1800-2020, material @material, country=country|nation @country
gardens: name @word, area 20-95, trees 100-900, city=city|town @city
farms: name @word, area 20-95, cows 10-90, country=country|nation @country, owner @person
ships=ships|boats: name @word, length 100-900, speed 100-300, year 1950-2020, country=country|nation @country
events: title @word, guests 100-900, price=price|cost 10-95, day @day, city=city|town @city
tickets: code @word, price=price|cost 10-95, day @day, status @status, owner @person
payments: code @word, total 100-900, day @day, status @status, fee 10-90
"""

UNSEEN = """
satellites: name @word, orbit 100-900, mass 10-95, country @country, year 1960-2020
volcanoes: name @word, height 100-250, eruptions 10-60, country @country
theaters: name @word, city @city, seats 100-900, year 1900-2020, style @style
lawyers: name @person, fee 10-90, wins 10-90, city @city
drones: name @word, range 10-90, price 10-95, color @color
bakeries: name @word, city @city, ovens 10-40, rating 10-95
violins: name @word, price 10-95, year 1700-2020, material @material
judges: name @person, age 40-80, cases 100-900, level @level
invoices: code @word, amount 10-90, day @day, status @status
warehouses: name @word, area 20-95, city @city, docks 10-40
"""

RELATIONS = """
orders > customers
products > suppliers
books > authors
movies > directors
songs > artists
players > teams
students > schools
courses > teachers
flights > airlines
rooms > hotels
pets > owners
patients > doctors
invoices > lawyers
drones > warehouses
"""


class Column(NamedTuple):
    term: str  # the word in questions
    names: tuple[str, ...]  # what the schema may call it
    pool: tuple[str, ...] = ()  # words it holds, empty for a number
    low: int = 0
    high: int = 0

    @property
    def step(self) -> int:
        """Numbers are round: fives, fifties from 100 up, decades for years."""
        return 5 if self.high < 100 else 50 if self.high < 1000 else 10

    @property
    def is_number(self) -> bool:
        return not self.pool

    def draw(self, rng: random.Random) -> int | str:
        return rng.randrange(self.low, self.high + 1, self.step) if self.is_number else rng.choice(self.pool)


class Table(NamedTuple):
    term: str
    names: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def singular(self) -> str:
        return self.term.removesuffix("s")


def _named(text: str) -> tuple[str, tuple[str, ...]]:
    term, _, names = text.partition("=")
    return term, tuple(names.split("|")) if names else (term,)


def _column(text: str) -> Column:
    name, kind = text.split()
    if kind.startswith("@"):
        return Column(*_named(name), pool=tuple(POOLS[kind[1:]].split()))
    low, high = map(int, kind.split("-"))
    return Column(*_named(name), low=low, high=high)


def parse(text: str) -> dict[str, Table]:
    """Term of a table -> the table."""
    tables = {}
    for line in text.strip().splitlines():
        name, columns = line.split(":")
        term, names = _named(name)
        tables[term] = Table(term, names, tuple(map(_column, columns.split(","))))
    return tables


def relations(tables: dict[str, Table]) -> list[tuple[Table, Table]]:
    """(child, parent) pairs whose two tables are both in `tables`."""
    pairs = re.findall(r"(\w+) > (\w+)", RELATIONS)
    return [(tables[child], tables[parent]) for child, parent in pairs if child in tables and parent in tables]
