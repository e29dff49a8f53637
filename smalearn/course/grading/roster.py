"""Class list: who is in the class, read from the CSV that a learning management system exports, and whose a file is."""

import csv
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Person", "find", "read"]

IDS = {"id", "number", "user", "username", "login", "email", "mail", "address"}
NAMES = {"name", "names", "student", "first", "last", "surname", "forename"}


@dataclass(frozen=True)
class Person:
    """Member of the class.

    Args:
        columns: the line of the class list, as it was.
        name: the columns that are names, joined.
        ids: numbers, logins, addresses.
    """

    columns: dict[str, str]
    name: str
    ids: frozenset[str]

    @property
    def names(self) -> set[str]:
        """Ways in which a file may spell the name, without spaces: the first part also last."""
        words = _plain(self.name).split()
        turns = [words[cut:] + words[:cut] for cut in range(len(words))]
        return {"".join(turn) for turn in turns}


def read(path: Path) -> list[Person]:
    """Read a class list: CSV with a line of titles, of which one is a name and, if possible, others are ids.

    Canvas exports such a file ("Student", "ID", "SIS Login ID"), and Moodle ("First name", "Last name", "ID number").

    Raises:
        ValueError: it is not.
    """
    text = path.read_text(encoding="utf-8-sig")
    first = text.partition("\n")[0]
    rows = csv.DictReader(text.splitlines(), delimiter=max(",;\t", key=first.count))
    kinds = {title: set(_plain(title).split()) for title in rows.fieldnames or []}
    ids = [title for title, words in kinds.items() if words & IDS]
    names = [title for title, words in kinds.items() if words & NAMES and title not in ids]
    if not names:
        raise ValueError(f"grade: {path} must be CSV whose first line has a title such as Student, Name or First name")
    people = []
    for row in rows:
        row = {title: (row[title] or "").strip() for title in kinds}
        name = " ".join(filter(None, (row[title] for title in names)))
        if name and name != "Points Possible":  # a line of Canvas's own
            people.append(Person(row, name, frozenset(filter(None, (row[title].lower() for title in ids)))))
    if not people:
        raise ValueError(f"grade: {path} names nobody")
    return people


def find(path: Path, people: Sequence[Person]) -> Person | None:
    """Find whose a file is, by its name and its folder's: an id in them, or else the name; None if that is unclear."""
    places = [path.stem.lower(), path.absolute().parent.name.lower()]
    words = {word for place in places for word in {place, *place.split("_"), *re.split(r"[^\w@.-]+", place)}}
    squeezed = [_plain(place).replace(" ", "") for place in places]
    by_id = [person for person in people if person.ids & words]
    by_name = [person for person in people if any(_names(place, person) for place in squeezed)]
    longest = max((len(person.name) for person in by_name), default=0)
    for matches in (by_id, [person for person in by_name if len(person.name) == longest]):
        if len(matches) == 1:
            return matches[0]
    return None


def _names(place: str, person: Person) -> bool:
    """Whether a place is a person's name, or holds one of at least two words."""
    return place in person.names or (" " in person.name and any(name in place for name in person.names))


def _plain(text: str) -> str:
    """Lower case without accents; what is not a letter or a digit becomes a space."""
    letters = unicodedata.normalize("NFKD", text.lower().replace("ß", "ss"))
    letters = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return " ".join(re.findall(r"[^\W_]+", letters))
