"""A class: who is in it, who answers alike, and what students and teachers get to read."""

import csv
import json
import re

import pytest

from smalearn.course import grading
from smalearn.course.exercises import evaluate, registry
from smalearn.course.exercises.card import card
from smalearn.course.grading import Row, Submission, roster
from smalearn.course.grading.alike import Pair, alike, passages
from smalearn.course.grading.pages import write_pages

# ---------------------------------------------------------------------------------------------------------- class list

CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section
    Points Possible,,,,
"Lovelace, Ada",101,s7,ada@x.org,A
"Ngô Bảo, Châu",102,s8,chau,A
"""
MOODLE = """First name;Surname;ID number;Email address
Ada;Lovelace;s7;ada@x.org
Bob;;s9;bob@x.org
"""


def people(folder, text):
    path = folder / "class.csv"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    return roster.read(path)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("lovelaceada_101_55501_03_linear_attention.ipynb", "Lovelace, Ada"),  # as Canvas names what it hands over
        ("lovelaceada_LATE_999_55501_03.ipynb", "Lovelace, Ada"),
        ("Ada Lovelace_77_assignsubmission_file/03.ipynb", "Lovelace, Ada"),  # and Moodle
        ("s8/03.ipynb", "Ngô Bảo, Châu"),
        ("ada@x.org.ipynb", "Lovelace, Ada"),
        ("ngo-bao-chau.ipynb", "Ngô Bảo, Châu"),
        ("ada.ipynb", None),
        ("s7_s8.ipynb", None),
        ("1010.ipynb", None),
        ("nobody/03.ipynb", None),
    ],
)
def test_a_file_belongs_to_whom_its_name_or_folder_names(tmp_path, path, name):
    found = roster.find(tmp_path / path, people(tmp_path, CANVAS))
    assert (found and found.name) == name


def test_other_lists_are_read_too(tmp_path):
    listed = people(tmp_path, MOODLE)
    assert [person.name for person in listed] == ["Ada Lovelace", "Bob"]
    assert roster.find(tmp_path / "bob.ipynb", listed).name == "Bob"
    assert roster.find(tmp_path / "bobby.ipynb", listed) is None
    assert listed[0].columns == {
        "First name": "Ada",
        "Surname": "Lovelace",
        "ID number": "s7",
        "Email address": "ada@x.org",
    }


@pytest.mark.parametrize(
    ("titles", "names", "ids"),
    [
        (  # the gradebook that Canvas exports
            "Student,ID,SIS User ID,SIS Login ID,Integration ID,Section,Names of masks (17),Current Score,Final Grade",
            ["Student"],
            ["ID", "SIS User ID", "SIS Login ID", "Integration ID"],
        ),
        (  # the gradebook that Moodle exports
            "First name,Last name,ID number,Institution,Department,Email address,Assignment: Your first student (Real),"
            "Quiz: Login (Real),Course total (Real),Last downloaded from this course",
            ["First name", "Last name"],
            ["ID number", "Email address"],
        ),
        (  # Moodle's grading worksheet
            "Identifier,Full name,ID number,Email address,Status,Grade,Maximum Grade,Grade can be changed,"
            "Last modified (submission),Last modified (grade),Feedback comments",
            ["Full name"],
            ["ID number", "Email address"],
        ),
        ("Surname;Forename;Username;E-mail;Phone number", ["Surname", "Forename"], ["Username", "E-mail"]),
        ("Student name\tStudent ID\tUser name", ["Student name"], ["Student ID", "User name"]),
        ("First,Last,Email", ["First", "Last"], ["Email"]),
        ("Last name(s),First name(s),ID", ["Last name(s)", "First name(s)"], ["ID"]),
    ],
)
def test_of_a_list_only_whole_titles_count(tmp_path, titles, names, ids):
    mark = next(mark for mark in ",;\t" if mark in titles)
    cells = titles.lower().split(mark)  # every column holds its own title
    (person,) = people(tmp_path, titles + "\n" + mark.join(cells))
    assert person.name == " ".join(names).lower()
    assert person.ids == tuple(title.lower() for title in ids)


TWINS = """First name,Last name,ID number,Email address
Ada,Lovelace,7,
Ada,Lovelace,,ada@x.org
Bob,Lovelace,9,bob@x.org
"""


def test_two_of_one_name_have_a_line_each_and_a_file_with_the_name_alone_is_nobodys(tmp_path):
    listed = people(tmp_path, TWINS)
    files = {
        "7_03.ipynb": "Ada Lovelace (7)",
        "ada@x.org/03.ipynb": "Ada Lovelace (ada@x.org)",
        "Bob Lovelace.ipynb": "Bob Lovelace",
        "Ada Lovelace_77_assignsubmission_file/03.ipynb": "Ada Lovelace_77_assignsubmission_file",
    }
    read = grading.read([tmp_path / name for name in files], listed)
    assert [submission.student for submission in read] == list(files.values())
    rows = [Row("x", tmp_path / name, {"3.1": "passed"}, worth={"3.1": number}) for number, name in enumerate(files)]
    lines = grading.lines(rows, grading.Terms(), listed)
    assert [(line.name, len(line.rows)) for line in lines] == [
        *((name, 1) for name in list(files.values())[:3]),
        ("x", 1),
    ]
    assert lines[1].columns["Email address"] == "ada@x.org"


def test_two_of_one_name_that_no_id_tells_apart_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"grade: .*class.csv has Ada 2 times, and no id tells them apart"):
        people(tmp_path, "name,group\nAda,1\nAda,2\n")


@pytest.mark.parametrize(
    ("text", "message"), [("a,b\n1,2\n", "must be CSV whose"), ("name\n", "names nobody"), ("", "must")]
)
def test_a_list_that_is_none(tmp_path, text, message):
    with pytest.raises(ValueError, match=rf"grade: .*class.csv {message}"):
        people(tmp_path, text)


def test_everybody_has_a_line_and_the_import_has_the_columns_of_the_list(tmp_path):
    listed = people(tmp_path, CANVAS)
    rows = [
        Row("x", tmp_path / "s7/03.ipynb", {"3.1": "passed"}, worth={"3.1": 2}),
        Row("x", tmp_path / "s7/04.ipynb", {"4.1": "not as asked"}, worth={"4.1": 1}),
        Row("eve", tmp_path / "eve.ipynb", {"3.1": "passed"}, worth={"3.1": 2}),
    ]
    terms = grading.Terms()
    lines = grading.lines(rows, terms, listed)
    assert [line.name for line in lines] == ["Lovelace, Ada", "Ngô Bảo, Châu", "eve"]
    grading.write_import(lines, terms, tmp_path / "import.csv")
    table = list(csv.reader((tmp_path / "import.csv").read_text(encoding="utf-8").splitlines()))
    assert table[0] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "smalearn 03", "smalearn 04"]
    assert table[1] == ["Lovelace, Ada", "101", "s7", "ada@x.org", "A", "2", "0.5"]
    assert table[2] == ["Ngô Bảo, Châu", "102", "s8", "chau", "A", "0", "0"]
    assert table[3] == ["eve", "", "", "", "", "2", "0"]
    grading.write(lines, terms, tmp_path / "table.csv")
    assert "nothing handed in" in (tmp_path / "table.csv").read_text(encoding="utf-8")
    assert grading.summary(lines, terms).endswith("\nNothing handed in: Ngô Bảo, Châu")


# --------------------------------------------------------------------------------------------------------------- alike

LONG = '''def scan(decay, updates, state):
    """What it does."""
    states = []
    for step in range(len(updates)):
        state = decay[step] * state + updates[step]
        states.append(state)
    stacked = torch.stack(states)
    return stacked, states[-1], stacked.sum(0).reshape(-1)
'''


@pytest.mark.parametrize(
    ("other", "least", "most"),
    [
        (LONG, 1, 1),
        (re.sub(r"\bstate\b", "h", LONG).replace("updates", "u").replace("step", "t"), 1, 1),
        (LONG.replace("What it does.", "Mine.").replace("    states = []", "    # mine\n\n    states=[ ]"), 1, 1),
        (LONG.replace("torch.stack(states)", "torch.cat(states, 0)"), 0.6, 0.9),
        (LONG.replace("    states = []", "    print('hello')\n    states = []"), 0.8, 0.95),
        (registry()["6.5"].code, 0, 0.3),
        ("def f(x):\n    return x", 0, 0),
        ("def f(:" + LONG, 0, 1),
        ("(" * 10**4, 0, 0),
    ],
)
def test_names_comments_and_layout_make_no_difference(other, least, most):
    assert least <= alike(LONG, other) <= most
    assert alike(LONG, other) == alike(other, LONG)


def test_short_answers_are_left_out_and_docstrings_are_no_answer():
    short = "def mean(V):\n    return V.mean(0)"
    assert alike(short, short) == 0
    assert not passages(f'def mean(V):\n    """{"words, " * 200}"""\n    return V.mean(0)')


def test_pairs_are_named_with_their_shares(tmp_path):
    made = [Submission(tmp_path, name, cells={"6.3": [LONG], "6.4": [f"# {name}\n" + LONG]}) for name in ("ada", "bob")]
    made.append(Submission(tmp_path, "carl", cells={"6.3": [registry()["6.5"].code]}))
    pairs = grading.pairs(made, ["6.3", "6.4", "6.5"])
    assert pairs == [Pair(("ada", "bob"), {"6.3": 1, "6.4": 1})]
    assert str(pairs[0]) == "ada and bob: 6.3 100%, 6.4 100%"


# --------------------------------------------------------------------------------------------------------------- pages


def row_of(student, folder, outcome="failed", **fields):
    exercise = registry()["3.1"]
    shown = card(evaluate(exercise, lambda Q, K, V: Q @ (K.mT @ V)), [])
    fields = {"cards": {"3.1": shown}, "misconceptions": {"3.1": "reads <b>all</b> tokens"}} | fields
    return Row(student, folder / f"{len(student)}.ipynb", {"3.1": outcome}, worth={"3.1": 2}, **fields)


def test_a_student_gets_the_cards_and_the_teacher_the_misconceptions(tmp_path):
    rows = [
        row_of("ada", tmp_path),
        row_of("bo<script>", tmp_path),
        row_of("carla", tmp_path, "passed", misconceptions={}, flags={"3.1": "the same as our solution"}),
        row_of(
            "dorothy", tmp_path, "missing", misconceptions={}, cards={}, notes={"3.1": "<i>not</i>", "": "setup: <x>"}
        ),
    ]
    terms = grading.Terms()
    write_pages(grading.lines(rows, terms), terms, [Pair(("a&b", "c"), {"3.1": 0.93})], tmp_path / "pages")
    index = (tmp_path / "pages/index.html").read_text(encoding="utf-8")
    assert "reads &lt;b&gt;all&lt;/b&gt; tokens" in index
    bars = dict(re.findall(r"<div>([^<]*)</div><div class=\"bar\">.*?width: ([\d.]+)rem", index))
    of_four = {"passed": "3.50", "reads &lt;b&gt;all&lt;/b&gt; tokens": "7.00", "not in the notebook": "3.50"}
    assert bars == of_four
    assert "a&amp;b and c: 3.1 93%" in index
    for name in re.findall(r'href="(students/[^"]*)"', index):
        assert (tmp_path / "pages" / name).is_file()
    page = (tmp_path / "pages/students/carla.html").read_text(encoding="utf-8")
    assert "0 of 2. It counts once it has been read." in page
    assert "the same as" not in page
    page = (tmp_path / "pages/students/ada.html").read_text(encoding="utf-8")
    assert "0 of 2 points" in page
    assert "✗" in page
    assert "is our solution from here on" not in page  # nothing follows it there
    texts = [path.read_text(encoding="utf-8") for path in (tmp_path / "pages").rglob("*.html")]
    assert len(texts) == 5
    for text in texts:
        assert not re.search(r"<(script|b>all|i>|x>)", text)
        assert "default-src 'none'" in text


def test_names_that_look_alike_have_pages_of_their_own(tmp_path):
    rows = [row_of(name, tmp_path) for name in ("a b", "a/b", "../..", "…")]
    terms = grading.Terms()
    write_pages(grading.lines(rows, terms), terms, [], tmp_path / "pages")
    made = sorted(path.name for path in (tmp_path / "pages/students").iterdir())
    assert made == ["a_b.2.html", "a_b.html", "student.2.html", "student.html"]


# ---------------------------------------------------------------------------------------------------------------- book


def test_a_book_goes_on_after_a_line_that_was_cut(tmp_path):
    path, terms = tmp_path / "book.csv", grading.Terms()
    book = grading.Gradebook(path, [], terms)
    book.add(row_of("ada", tmp_path, digest="1", seed=7), {"3.1": 2})
    book.add(row_of("bo", tmp_path, digest="2", seed=7), {"3.1": 2})
    rows = path.with_suffix(".jsonl")
    rows.write_text(rows.read_text(encoding="utf-8").strip()[:-50], encoding="utf-8")  # the power went
    again = grading.Gradebook(path, [], terms)
    assert [line.name for line in again.lines] == ["ada"]
    assert again.lines[0].rows[0].seed == 7
    again.add(row_of("bo", tmp_path, digest="2", seed=7), {"3.1": 2})
    third = grading.Gradebook(path, [], terms)
    assert [line.name for line in third.lines] == ["ada", "bo"]
    assert third.lines[0].rows[0].cards.keys() == {"3.1"}
    known = Submission(tmp_path / "3.ipynb", "ada", digest="1")
    assert third.has(known, {"3.1": 2})
    assert not third.has(Submission(known.path, "ada", digest="9"), {"3.1": 2})  # it was handed in again
    assert not third.has(known, {"3.1": 2, "3.2": 1})
    third.add(row_of("ada", tmp_path, digest="1", notes={"": "not graded to the end: x"}), {"3.1": 2})
    assert not third.has(known, {"3.1": 2})
    assert json.loads(rows.read_text(encoding="utf-8").splitlines()[-1])["student"] == "ada"


def test_one_book_has_all_chapters(tmp_path):
    book = grading.Gradebook(tmp_path / "book.csv", [], grading.Terms())
    book.add(Row("bob", tmp_path / "3/bob.ipynb", {"3.1": "failed"}), {"3.1": 2})  # who was finished first
    book.add(Row("ada", tmp_path / "4/ada.ipynb", {"4.1": "passed"}), {"4.1": 1})
    book.add(Row("ada", tmp_path / "3/ada.ipynb", {"3.1": "passed"}), {"3.1": 2})
    book.publish([])
    assert (tmp_path / "book.csv").read_text(encoding="utf-8").startswith("student,3.1,4.1,total,")
    _, *lines = (tmp_path / "book.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[:4] for line in lines] == [["ada", "2", "1", "3"], ["bob", "0", "", "0"]]
    assert (tmp_path / "book_pages/students/ada.html").is_file()
    assert not (tmp_path / "book.import.csv").exists()
