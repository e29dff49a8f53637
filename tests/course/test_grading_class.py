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


def people(folder, text, encoding="utf-8-sig", **columns):
    path = folder / "class.csv"
    path.write_bytes(text.encode(encoding))
    return roster.read(path, **columns)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_list_in_any_encoding_with_any_mark(tmp_path, encoding, mark):
    text = 'First name,Surname,ID number,Email address\n"Zoë\n",Noël,s7,zoe@x.org\n\nBob,,s9\n'.replace(",", mark)
    for start in ("", f"sep={mark}\r\n"):  # as Excel may begin
        listed = people(tmp_path, start + text, encoding).people
        assert [person.label for person in listed] == ["Zoë Noël", "Bob"]
        titles, cells = zip(*listed[0].columns, strict=True)
        assert titles == ("First name", "Surname", "ID number", "Email address")
        assert cells == ("Zoë", "Noël", "s7", "zoe@x.org")


@pytest.mark.parametrize("data", [b"PK\x03\x04" + bytes(range(40)), b"Name\nAda\x81\n", b"\xff\xfeN\x00a"])
def test_a_list_that_cannot_be_decoded_is_refused_by_name_with_a_remedy(tmp_path, data):
    (tmp_path / "class.csv").write_bytes(data)
    with pytest.raises(ValueError, match=r"grade: .*class\.csv is not text that can be read; save it as CSV in UTF-8"):
        roster.read(tmp_path / "class.csv")


def test_a_list_of_names_alone_may_have_commas_in_them(tmp_path):
    assert [one.label for one in people(tmp_path, "Name\nLovelace, Ada\n").people] == ["Lovelace, Ada"]


def test_columns_can_be_named(tmp_path):
    text = "Nr;Vorname;Nachname;Matrikel;Note\n1;Ada;Lovelace;12345;\n2;Emmy;Noether;s8;1.0\n"
    with pytest.raises(ValueError, match=r"it has Nr, Vorname, .*: say which it is with --name-column"):
        people(tmp_path, text)
    listed = people(tmp_path, text, names=["Vorname", "Nachname"], ids=["Matrikel"])
    assert [person.label for person in listed.people] == ["Ada Lovelace", "Emmy Noether"]
    assert [person.ids for person in listed.people] == [(("12345",),), (("s8",),)]
    with pytest.raises(ValueError, match=r"class\.csv has no column 'Name'; it has Nr, Vorname, "):
        people(tmp_path, text, names=["Name"])


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
            ["Identifier", "ID number", "Email address"],
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
    (person,) = people(tmp_path, titles + "\n" + mark.join(cells)).people
    assert person.label == " ".join(names).lower()
    assert person.ids == tuple(tuple(re.findall(r"\w+", title.lower())) for title in ids)


def test_two_of_one_name_have_a_line_each_with_their_own_columns(tmp_path):
    listed = people(tmp_path, "Name,ID,Email,Email\nAda,7,,a\nAda,,ada@x.org,b\nBob,9,,c\n")
    rows = [Row(name, tmp_path / name, {"3.1": "passed"}, worth={"3.1": 1}) for name in ("Ada (ada@x.org)", "Ada")]
    lines = grading.lines(rows, grading.Terms(), listed)
    assert [(line.name, len(line.rows)) for line in lines] == [
        ("Ada (7)", 0),
        ("Ada (ada@x.org)", 1),
        ("Bob", 0),
        ("Ada", 1),
    ]
    assert lines[1].columns == (("Name", "Ada"), ("ID", ""), ("Email", "ada@x.org"), ("Email", "b"))
    assert lines[3].unknown == "it may be of Ada (7) or Ada (ada@x.org)"


def test_two_of_one_name_that_no_id_tells_apart_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"grade: .*class.csv has Ada 2 times, and no id tells them apart"):
        people(tmp_path, "name,group\nAda,1\nAda,2\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "class.csv must be CSV whose"),
        ("name\n", "class.csv names nobody"),
        ("", "class.csv must"),
        ("name,id\nLovelace, Ada,7\n", "line 2 of .*class.csv has more cells than there are titles"),
    ],
)
def test_a_list_that_is_none(tmp_path, text, message):
    with pytest.raises(ValueError, match=rf"grade: .*{message}"):
        people(tmp_path, text)


def test_everybody_has_a_line_and_the_import_has_the_columns_of_the_list(tmp_path):
    listed = people(tmp_path, CANVAS)
    rows = [
        Row("s7", tmp_path / "s7/03.ipynb", {"3.1": "passed"}, worth={"3.1": 2}),
        Row("Lovelace, Ada", tmp_path / "s7/04.ipynb", {"4.1": "not as asked"}, worth={"4.1": 1}),
        Row("eve", tmp_path / "eve.ipynb", {"3.1": "passed"}, worth={"3.1": 2}),
    ]
    terms = grading.Terms()
    lines = grading.lines(rows, terms, listed)
    assert [line.name for line in lines] == ["Lovelace, Ada", "Ngô Bảo, Châu", "eve"]
    assert [line.unknown for line in lines] == ["", "", "nobody on the class list is called so"]
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
    book = grading.Gradebook(path, grading.Roster(), terms)
    book.add(row_of("ada", tmp_path, digest="1", seed=7), {"3.1": 2})
    book.add(row_of("bo", tmp_path, digest="2", seed=7), {"3.1": 2})
    rows = path.with_suffix(".jsonl")
    rows.write_text(rows.read_text(encoding="utf-8").strip()[:-50], encoding="utf-8")  # the power went
    again = grading.Gradebook(path, grading.Roster(), terms)
    assert [line.name for line in again.lines] == ["ada"]
    assert again.lines[0].rows[0].seed == 7
    again.add(row_of("bo", tmp_path, digest="2", seed=7), {"3.1": 2})
    third = grading.Gradebook(path, grading.Roster(), terms)
    assert [line.name for line in third.lines] == ["ada", "bo"]
    assert third.lines[0].rows[0].cards.keys() == {"3.1"}
    known = Submission(tmp_path / "3.ipynb", "ada", digest="1")
    assert third.has(known, {"3.1": 2})
    assert not third.has(Submission(known.path, "ada", digest="9"), {"3.1": 2})  # it was handed in again
    assert not third.has(known, {"3.1": 2, "3.2": 1})
    third.add(row_of("ada", tmp_path, digest="1", notes={"": "not graded to the end: x"}), {"3.1": 2})
    assert not third.has(known, {"3.1": 2})
    assert json.loads(rows.read_text(encoding="utf-8").splitlines()[-1])["student"] == "ada"


def test_a_book_learns_whose_a_file_is(tmp_path):
    path, worth = tmp_path / "book.csv", {"3.1": 2}
    book = grading.Gradebook(path, grading.Roster(), grading.Terms())
    for name in ("03", "week3/s7"):
        book.add(row_of(name, tmp_path, digest="1"), worth)
    assert book.has(Submission(tmp_path / "2.ipynb", "ada", digest="1"), worth)  # "03" before bob's came
    again = grading.Gradebook(path, people(tmp_path, "Name,ID\nEmmy Noether,s7\n"), grading.Terms())
    assert [(line.name, len(line.rows)) for line in again.lines] == [("Emmy Noether", 1), ("ada", 1)]


def test_one_book_has_all_chapters(tmp_path):
    book = grading.Gradebook(tmp_path / "book.csv", grading.Roster(), grading.Terms())
    book.add(Row("bob", tmp_path / "3/bob.ipynb", {"3.1": "failed"}), {"3.1": 2})  # who was finished first
    book.add(Row("ada", tmp_path / "4/ada.ipynb", {"4.1": "passed"}), {"4.1": 1})
    book.add(Row("ada", tmp_path / "3/ada.ipynb", {"3.1": "passed"}), {"3.1": 2})
    book.publish()
    assert (tmp_path / "book.csv").read_text(encoding="utf-8").startswith("student,3.1,4.1,total,")
    _, *lines = (tmp_path / "book.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[:4] for line in lines] == [["ada", "2", "1", "3"], ["bob", "0", "", "0"]]
    assert not (tmp_path / "book.import.csv").exists()
