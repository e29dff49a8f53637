"""Class list: who is in the class, read from the CSV that a learning management system exports, and whose a file is."""

import csv
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Person", "find", "read"]

NAMES = {"student", "student name", "name", "full name", "first name", "forename", "given name"}
NAMES |= {"last name", "surname", "family name", "first", "last", "names", "first name s", "last name s"}
KEYS = {"id", "number", "user", "username", "login", "email", "mail", "address"}
IDS = KEYS | {"e", "integration", "matriculation", "name", "registration", "sis", "student"}  # words of such titles


@dataclass(frozen=True)
class Person:
    """Member of the class.

    Args:
        columns: the line of the class list, as it was.
        name: the columns that are names, joined.
        ids: numbers, logins, addresses.
        label: the name, with an id where somebody else has the same.
    """

    columns: dict[str, str]
    name: str
    ids: tuple[str, ...]
    label: str

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
    plain = {title: _plain(title) for title in rows.fieldnames or []}
    names = [title for title, words in plain.items() if words in NAMES]
    ids = [title for title, words in plain.items() if title not in names and _is_id(set(words.split()))]
    if not names:
        raise ValueError(f"grade: {path} must be CSV whose first line has a title such as Student, Name or First name")
    found = []
    for row in rows:
        row = {title: (row[title] or "").strip() for title in plain}
        name = " ".join(filter(None, (row[title] for title in names)))
        if name and name != "Points Possible":  # a line of Canvas's own
            found.append((row, name, tuple(filter(None, (row[title].lower() for title in ids)))))
    if not found:
        raise ValueError(f"grade: {path} names nobody")
    counts = Counter(name for _, name, _ in found)
    people = [Person(row, name, own, _label(name, own, counts[name])) for row, name, own in found]
    label, count = Counter(person.label for person in people).most_common(1)[0]
    if count > 1:
        raise ValueError(f"grade: {path} has {label} {count} times, and no id tells them apart")
    return people


def _label(name: str, ids: Sequence[str], count: int) -> str:
    return f"{name} ({ids[0]})" if count > 1 and ids else name


def _is_id(words: set[str]) -> bool:
    """Whether a title of these words stands above ids: "SIS Login ID" does, "Assignment: login" does not."""
    return bool(words & KEYS) and words <= IDS


def find(path: Path, people: Sequence[Person]) -> Person | None:
    """Find whose a file is, by its name and its folder's: an id in them, or else the name; None if that is unclear."""
    places = [path.stem.lower(), path.absolute().parent.name.lower()]
    words = {word for place in places for word in {place, *place.split("_"), *re.split(r"[^\w@.-]+", place)}}
    squeezed = [_plain(place).replace(" ", "") for place in places]
    by_id = [person for person in people if words.intersection(person.ids)]
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
