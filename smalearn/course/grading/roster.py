"""Class list: read from the CSV that a learning platform exports; and whose a file is, by its place alone."""

import contextlib
import csv
import functools
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Person", "Place", "Roster", "copy_of", "is_chapter", "is_week", "kind_of", "read"]

FULL = {"student", "student name", "name", "names", "full name"}
FIRST = {"first name", "first names", "first name s", "first", "forename", "given name", "given names"}
LAST = {"last name", "last names", "last name s", "last", "surname", "family name", "family names"}
KEYS = {"id", "number", "user", "username", "login", "email", "mail", "address", "identifier"}
IDS = KEYS | {"e", "integration", "matriculation", "name", "registration", "sis", "student"}  # words of such titles
ENCODINGS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"\xef\xbb\xbf": "utf-8-sig"}
LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i", "ħ": "h"})

CHAPTERS = """00_start_here 01_one_contraction 02_kernel_attention 03_linear_attention 04_structured_masks
05_state_space_models 06_state_space_duality 07_the_mamba2_layer 08_the_delta_rule 09_three_more_changes
10_structured_scoring 11_multilevel_attention 12_chunked_kernel A_structured_matrices
B_serving_a_state"""
COUNTED = re.compile(r"([^\W\d_]{2,})? ?\d{1,2}")  # week 3, hw3, 03
WEEKS = {"assignment", "chapter", "ex", "exercise", "exercises", "homework", "hw", "lecture", "lesson", "sheet", "week"}
COPY = re.compile(r"(?:copy of )*(.+?)(?:\s*\((\d{1,3})\)|\s*-\s*copy\s*\d*|\s+copy\s*\d*)*", re.IGNORECASE)
GROUP = re.compile(r".+ (?:\w|\d+)-")  # "Group A-" before a name; "Anne-Marie" is one name
PLATFORM = [  # Moodle, Canvas, Blackboard; what follows is what the student called the file
    re.compile(r"(?P<name>.+?)_(?P<id>\d+)_assignsubmission_.*"),
    re.compile(r"(?P<name>[^_]+)_(?:LATE_)?(?P<id>\d+)_\d{3,}_.+"),
    re.compile(r"(?P<name>)(?P<id>.+)_attempt_\d{4}(?:-\d\d){5}(?:_.*)?"),
]
SMALL = 5  # digits: a shorter number may be that of a week, a chapter or a year

Words = tuple[str, ...]
Fit = tuple[bool, set[int]]  # whether it is all that a folder or file is called, and whose places on the list


def _words(text: str) -> Words:
    """Split a text into words of letters and digits, without case, accents and apostrophes, however it is encoded."""
    text = unicodedata.normalize("NFKD", re.sub("['’ʼ`´]", "", text).casefold()).translate(LETTERS)
    return tuple(re.findall(r"[^\W_]+", "".join(one for one in text if not unicodedata.combining(one))))


TITLES = {_words(name) for name in CHAPTERS.split()}


def copy_of(stem: str) -> tuple[str, int]:
    """Split the name of a second download, "ada (1)", or of a copy into name and number; 0 where it is none."""
    found = COPY.fullmatch(stem)
    return (found[1], int(found[2] or 1)) if found and found[1] != stem else (stem, 0)


def is_chapter(name: str) -> bool:
    """Whether a name is that of a chapter, with a number behind it or without: it is no student's."""
    said = _words(name)
    return said in TITLES or (said[:-1] in TITLES and said[-1].isdecimal())


def kind_of(name: str) -> str:
    """What a name has in common with its like: "week" of "week 3"; nothing of "03" and of a chapter's; else itself."""
    said = " ".join(_words(name))
    found = COUNTED.fullmatch(said)
    return "" if is_chapter(name) else found[1] or "" if found else said


def is_week(name: str) -> bool:
    """Whether a folder is for a week or an exercise, "week 3" or "hw", and nobody's."""
    return kind_of(name) in WEEKS


@dataclass(frozen=True)
class Place:
    """Names that may say whose a file is; those of chapters are left out."""

    folders: tuple[str, ...] = ()  # from below the one that the teacher named
    stem: str = ""  # the file's own name
    root: str = ""  # the folder that the teacher named
    several: bool = False  # whether notebooks of several kinds are in its folder

    @property
    def label(self) -> str:
        """Whom a file is called after where there is no class list: its folders, or else itself.

        Its own name is added where its folder has several. Those of weeks are left out where others, or that name, are
        there, so that a student is called the same in all weeks.
        """
        people = [name for name in self.folders if not is_week(name)]
        if self.stem and (not people or (self.several and kind_of(self.stem))):
            people.append(self.stem)
        return "/".join(people or self.folders) or self.stem or self.root


@dataclass(frozen=True)
class Person:
    """Member of the class."""

    label: str  # the name, with an id where somebody else has the same
    columns: tuple[tuple[str, str], ...]  # title and cell of the line in the class list, as it was
    spellings: dict[Words, bool]  # the name in each order -> whether the list has it so
    ids: tuple[Words, ...]  # numbers, logins, addresses


@dataclass(frozen=True)
class Roster:
    """Class list, in its order; nobody is on it where there is none."""

    titles: tuple[str, ...] = ("student",)
    name: str = "student"  # the column for the name of somebody who is not on it
    people: tuple[Person, ...] = ()

    @functools.cached_property
    def labels(self) -> dict[str, Person]:
        """Everybody by label."""
        return {person.label: person for person in self.people}

    @functools.cached_property
    def _spelled(self) -> dict[str, list[int]]:
        """Name without spaces -> who spells it so."""
        return _index(("".join(words), at) for at, one in enumerate(self.people) for words in one.spellings)

    @functools.cached_property
    def _known(self) -> dict[Words, list[int]]:
        """Id -> who has it."""
        return _index((id, at) for at, one in enumerate(self.people) for id in one.ids)

    @functools.cached_property
    def _names(self) -> set[str]:
        """All words of names."""
        return set().union(*(self._own(at) for at in range(len(self.people))))

    def _own(self, at: int) -> set[str]:
        """Words of somebody's name."""
        return set().union(*self.people[at].spellings)

    def whose(self, place: Place) -> tuple[Person | None, str]:
        """Find whose a file is, or say why that is unclear.

        What a learning platform has set decides alone, but not below the folder of somebody. Else a full name does,
        before an id; and what is the whole name of a folder or file, before what stands in it. Where two fit as well,
        it is nobody's.
        """
        if not self.people:
            return None, ""
        said = tuple(filter(None, (*place.folders, place.stem)))
        if not (place.folders or place.several) or self._decides(place.root) or self._ids_in(place.root)[0]:
            said = (place.root, *said)  # a student's own folder may be the one that was named
        if marked := _marked(next(filter(self._decides, said), "")):
            names, ids = self._in_marks(marked["name"], marked["id"])
        else:
            names = _best(map(self._names_in, said))
            ids = _best([*map(self._ids_in, said), self._numbers(place, bool(names[1]))])
        found = _agreed(names, ids)
        if len(found) == 1:
            return self.people[found.pop()], ""
        fitting = " or ".join(self.people[number].label for number in sorted(found)[:3])
        return None, f"it may be of {fitting}" if found else "nobody on the class list is called so"

    def called(self, place: Place) -> str:
        """Call a student as the list does, or by the place: so that it is nobody's who is on the list."""
        person, _ = self.whose(place)
        if person:
            return person.label
        full = "/".join((*place.folders, place.stem))
        return next(label for label in (place.label, full, f"{place.root}/{full}") if not self.named(label)[0])

    def named(self, label: str) -> tuple[Person | None, str]:
        """Find who is called so, by the list or by a place; or say why that is unclear."""
        *folders, stem = label.split("/")
        known = self.labels.get(label)
        return (known, "") if known else self.whose(Place(tuple(folders), stem, several=True))

    def _decides(self, name: str) -> bool:
        """Whether a folder or file is called like somebody, or by a platform, so that nothing below matters."""
        return bool(_marked(name)) or self._names_in(name)[0]

    def _in_marks(self, name: str, id: str) -> tuple[Fit, Fit]:
        """Match what a platform has set; a small number counts beside a part of that person's name, or none."""
        joined = "".join(_words(name))
        whole, people = max(self._names_in(name), self._names_in(GROUP.sub("", name)), key=lambda fit: fit[0])
        ends = [_words(id[start:]) for start, mark in enumerate(f"_{id}") if mark == "_"]  # "Homework 3_login"
        found = set(next((self._known[end] for end in ends if end in self._known), []))
        if joined and _is_small(_words(id)):
            found = {at for at in found if any(word in joined for word in self._own(at))}
        found.update(self._known.get(_words(f"{name} {id}"), []))  # "Participant 12"
        return (True, people if whole else set()), (True, found)

    def _names_in(self, name: str) -> Fit:
        """Match full names against whole words; as the list has one before turned around."""
        said = _words(name)
        whole, people = self._fit(said, lambda run: self._spelled.get("".join(run), []))
        exact = {at for at in people if self.people[at].spellings.get(said)}
        return whole, exact or people

    def _ids_in(self, name: str) -> Fit:
        """Match ids against whole words, all but small numbers."""
        return self._fit(_words(name), lambda run: [] if _is_small(run) else self._known.get(run, []))

    def _fit(self, said: Words, find: Callable[[Words], Iterable[int]]) -> Fit:
        """Choose who fits words of a text: not a part of what fits another, nor beside a name of somebody else.

        "Ann Lee" is not meant in "Ann Lee Smith", whether there is a student of that name or only some Smith; and who
        is only "Ann", or has it for a login, not in "Ann Byron", whether there is a Byron or not.
        """
        spans = [(start, end) for end in range(1, len(said) + 1) for start in range(end)]
        fits = {(start, end): found for start, end in spans if (found := find(said[start:end]))}
        outer = [(i, j) for i, j in fits if not any((k, m) != (i, j) and k <= i and j <= m for k, m in fits)]
        people = {at for span in outer for at in fits[span]}
        beside = {word for i, j in outer for word in (*said[max(0, i - 1) : i], *said[j : j + 1])}
        other = {word for word in said if word.isalpha()}.difference(self._names, WEEKS, *TITLES)
        short = all(j == i + 1 and said[i] in self._names for i, j in outer)
        if len(people) == 1 and ((short and other) or beside & (self._names - self._own(*people))):
            people = set()
        return (0, len(said)) in fits, people

    def _numbers(self, place: Place, named: bool) -> Fit:
        """Match small numbers: each the whole name of a file or folder, where no other folder may be a student's."""
        *folders, stem = map(_words, (*place.folders, place.stem))
        if not all(_is_small(name) or is_week(" ".join(name)) for name in folders):
            return False, set()
        shared = not _is_small(stem) and (place.several or (len(stem) > 1 and not named))  # it may be others' folder
        names = [stem] if shared else [*folders, stem]
        return False, {number for name in names if _is_small(name) for number in self._known.get(name, [])}


def _index(pairs: Iterable[tuple]) -> dict[object, list]:
    """Gather what goes with each key."""
    found = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def _marked(name: str) -> re.Match | None:
    return next(filter(None, (mark.fullmatch(name) for mark in PLATFORM)), None)


def _is_small(said: Words) -> bool:
    return len(said) == 1 and said[0].isdecimal() and len(said[0]) < SMALL


def _best(fits: Iterable[Fit]) -> Fit:
    """Choose who fits best, of several places, the outermost first."""
    best, found = False, set()
    for whole, people in fits:
        if people & found:
            found = people & found
        elif people and (whole >= best):  # what is said in passing does not count beside a whole name
            best, found = whole, people | found
    return best, found


def _agreed(names: Fit, ids: Fit) -> set[int]:
    """Choose between names and ids: an id tells two of one name apart, and may speak against a name in passing."""
    (whole, named), (known_whole, known) = names, ids
    if len(named) > 1:
        return named & known or named
    return named | known if known_whole and not whole else set(named or known)


def read(path: Path, names: Sequence[str] = (), ids: Sequence[str] = ()) -> Roster:
    """Read a class list: CSV with a line of titles, of which one or two are for names and, if possible, others for ids.

    Canvas exports such a file ("Student", "ID", "SIS Login ID"), and Moodle ("First name", "Last name", "ID number").
    It is in UTF-8, UTF-16 or the encoding of Windows in the west, with commas, semicolons or tabs.
    """
    titles, *rows = _table(path)
    for title in (*names, *ids):
        if title not in titles:
            raise ValueError(f"grade: {path} has no column {title!r}; it has {', '.join(titles)}")
    names = names or _name_columns(titles)
    words = {title: set(_words(title)) for title in titles if title not in names}
    ids = ids or [title for title, said in words.items() if said & KEYS and said <= IDS]  # not "Assignment: login"
    if not names:
        raise ValueError(
            f"grade: {path} must be CSV whose first line has a title such as Student, Name or First name; "
            f"it has {', '.join(titles) or 'none'}: say which it is with --name-column"
        )
    named, known = ([titles.index(title) for title in chosen] for chosen in (names, ids))
    found = []
    for cells in rows:
        parts = _parts([cells[column] for column in named])
        if parts and parts != ["Points Possible"]:  # a line of Canvas's own
            line = tuple(zip(titles, cells, strict=True))
            found.append((line, parts, [cells[column] for column in known if _words(cells[column])]))
    if not found:
        raise ValueError(f"grade: {path} names nobody")
    counts = Counter(" ".join(parts) for _, parts, _ in found)
    people = [_person(line, parts, own, counts[" ".join(parts)]) for line, parts, own in found]
    label, count = Counter(person.label for person in people).most_common(1)[0]
    if count > 1:
        raise ValueError(f"grade: {path} has {label} {count} times, and no id tells them apart")
    return Roster(tuple(titles), names[0], tuple(people))


def _table(path: Path) -> list[list[str]]:
    """Read lines of equally many cells; the mark between them is the one that makes the most titles, if any does."""
    data = path.read_bytes()
    guess = "utf-16-le" if data[1:2] == b"\0" else "utf-16-be" if data[:1] == b"\0" else "utf-8"
    marked = next((name for mark, name in ENCODINGS.items() if data.startswith(mark)), guess)
    for encoding in (marked, "cp1252") if marked == "utf-8" else (marked,):
        with contextlib.suppress(UnicodeDecodeError):
            text = data.decode(encoding).removeprefix("\ufeff").lstrip("\r\n")
            break
    else:
        text = "\0"
    if re.search(r"[\0-\x08\x0e-\x1f]", text):
        raise ValueError(f"grade: {path} is not text that can be read; save it as CSV in UTF-8")
    first, _, rest = text.partition("\n")
    if said := re.fullmatch(r"sep=(.)\s*", first):
        return _lines(path, rest, said[1])
    return _lines(path, text, max("\t;,", key=lambda mark: len(next(csv.reader([first], delimiter=mark), []))))


def _lines(path: Path, text: str, mark: str) -> list[list[str]]:
    try:
        lines = [[cell.strip() for cell in line] for line in csv.reader(io.StringIO(text, newline=""), delimiter=mark)]
    except csv.Error as error:
        raise ValueError(f"grade: {path} is not CSV: {error}") from None
    titles = lines[0] if lines else []
    for number, line in enumerate(lines[1:], start=2):
        if any(line[len(titles) :]):
            raise ValueError(f"grade: line {number} of {path} has more cells than there are titles")
    return [titles, *((line + [""] * len(titles))[: len(titles)] for line in lines[1:] if any(line))]


def _name_columns(titles: Sequence[str]) -> list[str]:
    """Find the columns of names: of the first and the last, or of both in one."""
    kinds = [[title for title in titles if " ".join(_words(title)) in kind] for kind in (FIRST, LAST, FULL)]
    first, last, full = (kind[:1] for kind in kinds)
    both = first + last if first and last else first + full if first or not last else last + full
    return sorted(both, key=titles.index)


def _parts(cells: Sequence[str]) -> list[str]:
    """The parts of a name: without a first name that is also in the column of the full one."""
    said = [set(_words(cell)) for cell in cells]
    return [cell for cell, own in zip(cells, said, strict=True) if own and not any(own < other for other in said)]


def _person(line: tuple[tuple[str, str], ...], parts: Sequence[str], ids: Sequence[str], count: int) -> Person:
    """Make a person, whose name may be turned around: as good in two columns or at a comma, else a little worse."""
    name = " ".join(parts)
    said, halves = _words(name), [half for part in parts for half in part.split(",", 1 if len(parts) == 1 else 0)]
    spellings = {said[cut:] + said[:cut]: False for cut in range(len(said))}
    spellings |= {said: True, _words(" ".join(reversed(halves))): True}
    label = f"{name} ({ids[0]})" if count > 1 and ids else name
    return Person(label, line, spellings, tuple(map(_words, ids)))
