"""Whose is what was handed in: folders and files as teachers have them, with a class list and without."""

from pathlib import Path

import pytest

from smalearn.course import grading
from smalearn.course.grading import roster
from smalearn.course.workbook import notebook as notebooks

NUMBERED = "Number,Student\n1,Ada Lovelace\n2,Alan Turing\n3,Grace Hopper\n12,Emmy Noether\n"
SPLIT = (
    "First name;Last name;ID number;Email address\nAda;Lovelace;s7;ada@x.org\nThomas;Martin;s8;\nMartin;Thomas;s9;\n"
)
CANVAS = 'Student,ID,SIS Login ID\n    Points Possible,,\n"Lovelace, Ada",101,ada\n"Ngô Bảo, Châu",12345,linear\n'
CONTAINED = "Name\nAnn Lee\nAnn Lee Smith\nJoann Leeson\nAnn\nJoanna\nBob Weiß\nSøren Kier\n"
TWINS = "Name,ID\nAda Lovelace,7\nAda Lovelace,s9\nBob Lovelace,9\n"
MOODLE = "_assignsubmission_file_"
THIRD, FOURTH = "03_linear_attention", "04_structured_masks"

# class list -> what is handed in -> path without .ipynb -> whose; "?" and why: nobody's
# of other files: path -> whose, and why it is not graded; None: passed over
CASES = {
    NUMBERED: {
        "a number is no word of a folder": {
            "week 3/Ada Lovelace": "Ada Lovelace",
            "week 3/alan_turing_hw2": "Alan Turing",
            "week 3/12": "Emmy Noether",
            "week 3/03 eve": "?nobody",
            "week 3/eve 2026": "?nobody",
        },
        "a number, alone": {"3/hw": "Grace Hopper", "1": "Ada Lovelace", "2 (1)": "Alan Turing", "eve/3": "?nobody"},
        "two numbers are one too many": {"1/3": "?it may be of Ada Lovelace or Grace Hopper"},
        "a folder of a chapter": {"3/Ada Lovelace": "Ada Lovelace", "3/eve": "?nobody", f"3/{THIRD}": "?nobody"},
        "a number between the marks of Moodle": {
            f"Ada Lovelace_3{MOODLE}/hw": "Ada Lovelace",
            f"A. Turing_2{MOODLE}/1": "Alan Turing",
            f"Eve Adams_3{MOODLE}/Grace Hopper": "?nobody",
            f"Group 1-Emmy Noether_345{MOODLE}/hw": "Emmy Noether",
        },
        "Moodle, all in one folder": {f"Lovelace Ada_3{MOODLE}Alan Turing": "Ada Lovelace"},
        "Canvas": {
            f"lovelaceada_12_345_{THIRD}": "Ada Lovelace",
            "turingalan_LATE_3_12345_Grace Hopper-1": "Alan Turing",
            "adamseve_3_12345_Grace Hopper": "?nobody",
            "hw_3_11_Emmy Noether": "Emmy Noether",  # a date
        },
    },
    CANVAS: {
        "ids and names with other things": {
            "hw_101x": "?nobody",
            "12345 final": "Ngô Bảo, Châu",
            "ngo-bao-chau": "Ngô Bảo, Châu",
            "Ada Byron": "?nobody",
            "ada_linear": "?it may be of",
            "lovelaceada_LATE_999_55501_03": "Lovelace, Ada",
            f"Ada Lovelace_77{MOODLE}/03": "Lovelace, Ada",
        },
        "a login that is a word of a chapter": {
            f"ada/{THIRD}": "Lovelace, Ada",
            f"eve/{THIRD}": "?nobody",
            "linear": "Ngô Bảo, Châu",
        },
        "a name before an id": {"linear/Ada Lovelace": "Lovelace, Ada", "hw linear Lovelace_Ada": "Lovelace, Ada"},
        "an id of a folder against a name in passing": {"ada/with Châu Ngô Bảo": "?it may be of"},
        "deep in a folder": {"Ada Lovelace/src/final": "Lovelace, Ada", "week 3/ada/work/hw": "Lovelace, Ada"},
    },
    CONTAINED: {
        "names are whole words, the longest": {
            "Joanna": "Joanna",
            "Ann hw3": "Ann",
            "Ann Byron": "?nobody",
            "Susann Leeds": "?nobody",
            "Joann Leeson": "Joann Leeson",
            "hw Ann Lee Smith": "Ann Lee Smith",
            "ann_lee": "Ann Lee",
            "Ann Lee and Bob Weiß": "?it may be of Ann Lee or Bob Weiß",
            "BOB WEISS": "Bob Weiß",
            "S\u00f8ren-Kier": "Søren Kier",
        },
        "a folder and a file of two people": {"Ann Lee/Bob Weiss": "?it may be of Ann Lee or Bob Weiß"},
    },
    "Name\nNgô Bảo Châu\nZoë O’Brien\nÅsa Øst\n王小明\n": {
        "letters however they are written": {
            "Ngo\u0302 Ba\u0309o Cha\u0302u": "Ngô Bảo Châu",
            "zoe_obrien_03": "Zoë O’Brien",
            "ASA OST": "Åsa Øst",
            "王小明_3": "王小明",
        },
    },
    SPLIT: {
        "last before first": {
            "Lovelace, Ada": "Ada Lovelace",
            "Lovelace Ada/hw": "Ada Lovelace",
            "AdaLovelace_hw": "Ada Lovelace",
            "ADA@x.org": "Ada Lovelace",
            "ada": "?nobody",
            "Martin Thomas": "?it may be of Thomas Martin or Martin Thomas",
            "s8/Thomas Martin": "Thomas Martin",
        },
    },
    "Name,First name\nLovelace,Ada\nAlan Turing,Alan\n": {
        "a name beside its parts": {"Ada Lovelace": "Lovelace Ada", "turing_alan": "Alan Turing", "Alan": "?nobody"},
    },
    "Name\nThomas Martin\nMartin Thomas\n": {
        "as the list has it before turned": {"Martin Thomas": "Martin Thomas"},
    },
    TWINS: {
        "two of one name": {
            f"Ada Lovelace_7{MOODLE}/03": "Ada Lovelace (7)",
            "7/Ada Lovelace": "Ada Lovelace (7)",
            "Ada Lovelace s9": "Ada Lovelace (s9)",
            "Ada Lovelace": "?it may be of Ada Lovelace (7) or Ada Lovelace (s9)",
            "Bob Lovelace": "Bob Lovelace",
        },
    },
    None: {
        "a folder for everybody": {f"ada/{THIRD}": "ada", f"ada/{FOURTH}": "ada", "bob/hw3": "bob", "bob/hw4": "bob"},
        "drafts": {"ada/draft": "ada/draft", "ada/final": "ada/final", "bob/final": "bob"},
        "nothing but files": {"ada": "ada", "bob.IPYNB": ("bob", ""), "03": "03"},
        "second downloads": {
            "ada": "ada",
            "ada (1)": "ada",
            "bob(2)": "bob",
            f"carl/{THIRD} (1)": "carl",
            f"carl/{THIRD}-Copy1": "carl",
            "dora-Copy2": "dora",
        },
        "weeks of files": {"week3/ada": "ada", "week3/bob": "bob", "week4/ada": "ada", "week4/bob": "bob"},
        "nbgrader": {f"ada/{THIRD}/{THIRD}": "ada", f"bob/{THIRD}/{THIRD}": "bob"},
        "folders that are counted are students': only those of weeks are not": {
            "student1/draft": "student1/draft",
            "student1/final": "student1/final",
            "student2/hw": "student2",
        },
        "weeks in a student's folder": {"ada/week3/a": "ada", "ada/week4/b": "ada", "bob/week3/a": "bob"},
        "copies": {"ada": "ada", "Copy of ada": "ada", "Copy of Copy of bob (1)": "bob"},
        "what is no notebook, among files": {
            "ada": "ada",
            "ada.pdf": ("", "no notebook"),
            "bob.ipynb.json": ("bob", "rename it"),
            "carl.zip": ("", "an archive: unpack it"),
            "dora.py": ("", "no notebook"),
            "eve.ipynb (1)": ("eve", "rename it"),
            ".hidden.ipynb": None,
            ".ipynb_checkpoints/ada-checkpoint.ipynb": None,
            "__MACOSX/ada.ipynb": None,
        },
        "what is no notebook, in folders": {
            "ada/hw": "ada",
            "ada/notes.pdf": ("", "no notebook"),
            "ada/hw.ipynb.json": ("", "rename it"),
            "ada/data/": ("", "no notebook in this folder"),
            "ada/data/x.csv": None,
            "bob/": ("bob", "no notebook in this folder"),
            "bob/hw.ipynb.json": None,
        },
    },
    "Name,ID\nMarie Curie,50001\nAda Lovelace,50002\n": {
        "a hyphen is no mark of Moodle, a group's is": {
            f"Anne-Marie Curie_33333{MOODLE}/hw": "?nobody",
            f"Group B-Ada Lovelace_4444{MOODLE}/hw": "Ada Lovelace",
            f"Team 12-Marie Curie_4445{MOODLE}/hw": "Marie Curie",
        },
    },
    "Identifier,Full name\nParticipant 3,Ada Lovelace\nParticipant 314159,Alan Turing\n": {
        "Moodle's own numbers": {
            f"Participant_3{MOODLE}/hw": "Ada Lovelace",
            f"Participant_314159{MOODLE}/hw": "Alan Turing",
            f"Participant_31{MOODLE}/hw": "?nobody",
        },
    },
    "Name,Username\nAnn Love,a_love\nBob Love,love\n": {
        "a login in a login": {
            "HW 3_a_love_attempt_2026-11-20-10-11-12_hw": "Ann Love",
            "HW 3_love_attempt_2026-11-20-10-11-12_hw": "Bob Love",
        },
    },
    SPLIT.replace("s7", "70007").replace("s8", "80008"): {
        "somebody else's file in a student's folder": {
            "Ada Lovelace/lovelace_03_2026_final": "Ada Lovelace",  # no mark of Canvas
            "Ada Lovelace/martinthomas_80008_555_hw": "Ada Lovelace",
            "Ada Lovelace 3/Thomas Martin": "?it may be of",
            "70007 hw/80008": "?it may be of",
            "Ada Lovelace and Thomas Martin/Ada Lovelace": "Ada Lovelace",
        },
    },
}


def hand_in(folder, paths):
    """Make an empty notebook under each path, whatever it is called, or a folder."""
    for path in paths:
        place = folder / path
        (place if path.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        if not path.endswith("/"):
            place.write_text('{"cells": []}', encoding="utf-8")


def whose(folder, names, people):
    """Path -> student, or "?" if nobody on the list; and why it is nobody's or not graded."""
    found = {}
    for one in grading.read(names, people):
        said = (one.student, one.problem)
        if people.people and not one.problem:
            lines = grading.lines([grading.Row(one.student, one.path)], grading.Terms(), people)
            (line,) = (line for line in lines if line.rows)  # the table has the same student
            said = ("?" if line.unknown else one.student, line.unknown)
            assert line.name == one.student
        found[one.path.relative_to(folder).as_posix() + "/" * one.path.is_dir()] = said
    return found


@pytest.mark.parametrize(
    "names", [["in"], ["in/ada"], [f"in/ada/{THIRD}.ipynb"], ["in/*"], [f"in/*/{THIRD}.ipynb"]], ids=" ".join
)
def test_one_folder_is_the_same_student_however_it_is_named_and_after_others_came(tmp_path, names):
    for others in ([], [f"bob/{THIRD}.ipynb"], [f"ada/{FOURTH}.ipynb", "carl/hw.ipynb", "dora.ipynb"]):
        hand_in(tmp_path / "in", [f"ada/{THIRD}.ipynb", *others])
        given = [path for name in names for path in tmp_path.glob(name)]  # as a shell does
        for path, (student, _) in whose(tmp_path / "in", given, roster.Roster()).items():
            assert student == path.removesuffix(".ipynb").partition("/")[0]


@pytest.mark.parametrize("names", ["*", "*/*"])
def test_with_a_list_a_folder_names_the_student_also_where_it_is_the_one_that_is_named(tmp_path, names):
    (tmp_path / "class.csv").write_text(SPLIT, encoding="utf-8")
    people = roster.read(tmp_path / "class.csv")
    cases = {
        "Ada Lovelace/Thomas Martin.ipynb": "?",
        "Ada Lovelace 3/Thomas Martin.ipynb": "?",
        "Ada Lovelace/with Thomas Martin.ipynb": "Ada Lovelace",
        f"Eve Adams_33333{MOODLE}/Ada Lovelace.ipynb": "?",
        f"Ada Lovelace_33333{MOODLE}/draft.ipynb": "Ada Lovelace",
        f"Ada Lovelace_33333{MOODLE}/Thomas Martin.ipynb": "Ada Lovelace",
    }
    hand_in(tmp_path / "in", cases)
    for given in [tmp_path / "in", *(tmp_path / "in").glob(names)]:
        for path, (student, _) in whose(tmp_path / "in", [given], people).items():
            assert (path, student) == (path, cases[path])


def test_no_student_is_called_as_a_chapter():
    chapters = [path.stem for path in notebooks.chapters(Path(__file__).parents[2] / "chapters")]
    assert chapters
    assert [name for name in chapters if not roster.is_chapter(name)] == []  # add it to `CHAPTERS`


def test_of_many_folders_one_may_be_without_a_notebook(tmp_path):
    hand_in(tmp_path, [f"ada/{THIRD}-Copy1.ipynb", "bob/hw.pdf", "book.csv"])
    given = sorted(tmp_path.glob("*"))
    found = grading.read(given, ours=[tmp_path / "book.csv"])
    assert [(one.student, one.problem) for one in found] == [("ada", ""), ("bob", "no notebook in this folder")]
    assert [one.student for one in grading.read(given[:1])] == ["ada"]


def test_files_of_one_name_in_several_folders_are_of_one_student_only_in_weeks(tmp_path):
    hand_in(tmp_path, [f"{folder}/{name}.ipynb" for folder in ("eve", "bob", "hw1", "hw2") for name in ("a x", "b y")])
    for folders, expected in ((("eve", "bob"), 4), (("hw1", "hw2"), 2)):
        assert len({one.student for one in grading.read([tmp_path / name for name in folders])}) == expected


@pytest.mark.parametrize(
    ("listed", "expected"),
    [pytest.param(listed, paths, id=name) for listed, cases in CASES.items() for name, paths in cases.items()],
)
def test_whose_a_file_is(tmp_path, listed, expected):
    expected = {f"{path}.ipynb" if isinstance(said, str) else path: said for path, said in expected.items()}
    hand_in(tmp_path / "in", expected)
    people = roster.Roster()
    if listed:
        (tmp_path / "class.csv").write_text(listed, encoding="utf-8")
        people = roster.read(tmp_path / "class.csv")
    found = whose(tmp_path / "in", [tmp_path / "in"], people)
    assert found.keys() == {path for path, said in expected.items() if said is not None}
    for path, (student, reason) in found.items():
        said = expected[path]
        student_said, why = said if isinstance(said, tuple) else ("?", said[1:]) if said[0] == "?" else (said, "")
        assert (path, student) == (path, student_said)
        assert why in reason
        assert bool(why) == bool(reason)
