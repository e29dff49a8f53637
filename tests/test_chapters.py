"""What every chapter must be, checked without running it; nbval compares a real run with the stored outputs."""

import ast
import base64
import builtins
import functools
import importlib
import inspect
import re

import notebooks
import pytest

from smalearn.course import exercises, grading
from smalearn.course.exercises.judge import AnswerKey
from smalearn.course.grading.needed import Notebook
from smalearn.course.workbook.notebook import chapters

CHAPTERS = chapters(notebooks.CHAPTERS)
every_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)


def number(path):
    """Of a chapter, or the letter of an appendix: the exercises are numbered by it."""
    return path.stem.partition("_")[0].removeprefix("0")


stored = functools.cache(notebooks.read)  # of a chapter: nobody writes into it


def cells(path, kind=None):
    return [cell for cell in stored(path).cells if kind in (None, cell.cell_type)]


def exercise_cells(path):
    """Exercise id -> its two code cells, the stub and the check."""
    found = {}
    for cell in cells(path, "code"):
        if "exercise" in cell.metadata:
            found.setdefault(cell.metadata.exercise, []).append(cell)
    return found


def test_there_are_chapters_in_order():
    numbers = [number(path) for path in CHAPTERS]
    known = [one for one in numbers if one.isdigit()]
    assert known == sorted(set(known), key=int)
    assert known[:2] == ["0", "1"]
    assert numbers == [*known, *sorted(set(numbers) - set(known))]
    assert {path.parent.name for path in CHAPTERS if not number(path).isdigit()} == {"appendix"}


@every_chapter
def test_normal_form_and_a_complete_run(path):
    notebook = stored(path)
    assert path.read_text(encoding="utf-8") == notebooks.dumps(notebooks.normalise(notebook))
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1)), "run python tests/notebooks.py"
    assert not [o for cell in cells(path, "code") for o in cell.outputs if o.output_type == "error"]


@every_chapter
def test_outputs_that_no_run_compares_were_made_by_this_very_source(path):
    old = [cell.id for cell in cells(path) if cell.metadata.get("made_by") != notebooks.digest(cell)]
    assert not old, "run python tests/notebooks.py"


@every_chapter
def test_cells_are_short_and_few_outputs_are_ignored(path):
    for cell in cells(path, "code"):
        limits = {"setup": 20, "listing": 28}
        tag = next(iter(limits.keys() & set(cell.metadata.get("tags", []))), "")
        assert len(cell.source.splitlines()) <= limits.get(tag, 15), cell.id
    ignored = [
        c.id for c in cells(path, "code") if {"nbval-ignore-output", "nbval-skip"} & set(c.metadata.get("tags", []))
    ]
    assert len(ignored) <= 3
    assert not [cell.id for cell in cells(path, "code") if "nbval-skip" in cell.metadata.get("tags", [])]


@every_chapter
def test_opens_and_closes_as_promised(path):
    prose = [cell.source for cell in cells(path, "markdown")]
    assert prose[0].startswith(f"# {path.stem.partition('_')[0]} · ")
    for part in ("What you will be able to do", "What you need", "Time:"):
        assert part in prose[0]
    closing = prose[-1]
    assert "To remember" in closing
    assert "Further reading" in closing
    assert len(re.findall(r"(?m)^- ", closing)) <= 6
    assert any("setup" in cell.metadata.get("tags", []) for cell in cells(path, "code"))


@every_chapter
def test_pictures_are_small_and_described(path):
    for cell in cells(path, "code"):
        for output in cell.outputs:
            image = output.get("data", {}).get("image/png")
            if image:
                assert len(base64.b64decode(image)) < 130_000, cell.id
                alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
                assert len(alt) > 30, f"{cell.id} has a picture without alt text"


@every_chapter
def test_outputs_tell_nothing_of_the_machine(path):
    for cell in cells(path, "code"):
        for output in cell.outputs:
            text = output.get("text", "") + str(output.get("data", {}).get("text/plain", ""))
            assert not re.search(r"0x[0-9a-f]{6,}|/home/|/work/|/tmp/|site-packages|[A-Z]:\\", text), cell.id


def test_every_exercise_stands_in_exactly_one_chapter():
    placed = [exercise for path in CHAPTERS for exercise in exercise_cells(path)]
    assert sorted(placed) == sorted(exercises.registry())  # those of optional sections come last in their chapter


@every_chapter
def test_exercises_are_set_as_registered(path):
    prose = "\n".join(cell.source for cell in cells(path, "markdown"))
    for name, pair in exercise_cells(path).items():
        exercise = exercises.registry()[name]
        stub, check = pair
        assert name.split(".")[0] == number(path)
        assert f"**Exercise {name} · {exercise.title}** ({exercise.label})" in prose
        function = ast.parse(stub.source).body[-1]
        assert isinstance(function, ast.FunctionDef)
        assert function.name == exercise.solution.__name__
        arguments = [argument.arg for argument in function.args.args]
        assert arguments == list(inspect.signature(exercise.solution).parameters)
        assert ast.get_docstring(function)
        assert isinstance(function.body[-1], ast.Raise)
        assert check.source == f'{function.name} = check("{name}", {function.name})'
        code = cells(path, "code")
        beside = code[code.index(check) + 1]  # a cell of its own: to ask for help is no attempt
        helps = ["hint", "solution"] if exercise.kind == "predict" else ["hint", "case", "solution"]
        assert beside.source == "\n".join(f'# {one}("{name}")' for one in helps)


@every_chapter
def test_stored_cards_count_the_cases_of_today(path):
    for cell in cells(path, "code"):
        for output in cell.outputs:
            if card := output.get("data", {}).get("application/vnd.smalearn.check+json"):
                exercise = exercises.registry()[card["exercise"]]
                assert card["cases"] == len(AnswerKey(exercise, card["seed"]).cases), cell.id


@every_chapter
@pytest.mark.parametrize("solved", [False, True], ids=["untouched", "solved"])
def test_exercises_need_only_the_setup_cells(path, solved, capsys):
    namespace = {"__name__": "__main__"}
    for cell in cells(path, "code"):
        if "setup" in cell.metadata.get("tags", []):
            exec(cell.source, namespace)
    for name, (stub, check) in exercise_cells(path).items():
        exec(stub.source, namespace)
        if solved:
            solution = exercises.registry()[name].solution
            namespace[solution.__name__] = solution
        capsys.readouterr()
        exec(check.source, namespace)
        assert capsys.readouterr().out.startswith(f"✓ {name}" if solved else f"○ {name}")


def bound(tree):
    """The names that a cell gives to things: by import, assignment, definition, or in a loop."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (name.asname or name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


@every_chapter
def test_a_solution_that_is_copied_runs_where_it_stands(path):
    known = set(dir(builtins))
    for cell in cells(path, "code"):
        id = cell.metadata.get("exercise")
        if id and not cell.source.lstrip().startswith("#") and "NotImplementedError" in cell.source:
            tree = ast.parse(exercises.registry()[id].code)
            used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
            assert used <= known | set(bound(tree)), id
        known |= set(bound(ast.parse(re.sub(r"(?m)^\s*[%!].*$", "", cell.source))))


@every_chapter
def test_an_answer_finds_its_names_when_it_is_graded(path, tmp_path):
    notebook = notebooks.read(path)
    for cell in notebook.cells:
        if cell.cell_type == "code" and "NotImplementedError" in cell.source:
            cell.source = exercises.registry()[cell.metadata["exercise"]].code
    (tmp_path / path.name).write_text(notebooks.dumps(notebook), encoding="utf-8")
    (submission,) = grading.read([tmp_path / path.name])
    graded = Notebook(submission.code)
    for place in range(len(submission.code)):
        graded.read(place)
    known = set(dir(builtins)).union(*(one.binds for one in graded.setup()))
    for id in submission.cells:
        exercise = exercises.registry()[id]
        tree = ast.parse(exercise.code)
        known = known.union(*(one.binds for one in graded.plan(id, exercise.solution.__name__, "run")))
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        assert used <= known | set(bound(tree)), id


@every_chapter
def test_begins_at_once_and_fits_a_screen(path):
    (setup, *_) = cells(path, "code")
    assert "setup" in setup.metadata.get("tags", [])
    assert len(setup.source.splitlines()) <= 5
    wide = [cell.id for cell in cells(path, "code") for line in cell.source.splitlines() if len(line) > 88]
    assert not wide
    begun = [cell for cell in cells(path) if "opener" not in cell.metadata.get("tags", [])][:10]
    assert any("image/png" in output.get("data", {}) for cell in begun for output in cell.get("outputs", []))


@every_chapter
def test_three_closed_book_questions_follow_the_setup_cell(path):
    asked = [id for id in exercise_cells(path) if exercises.registry()[id].opener]
    assert asked == ([] if number(path) in ("0", "1") else [f"{number(path)}.{letter}" for letter in "abc"])
    tagged = [place for place, cell in enumerate(cells(path)) if "opener" in cell.metadata.get("tags", [])]
    assert tagged == list(range(2, 2 + (13 if asked else 0)))  # a sentence, then heading, stub, check and help of each
    for id in asked:
        assert exercises.registry()[id].kind in ("predict", "prove")


@every_chapter
def test_shows_more_than_that_it_is_true(path):
    code = [cell for cell in cells(path, "code") if not cell.source.startswith("#")]
    true = [cell.id for cell in code if any("True" in str(output) for output in cell.outputs)]
    assert len(true) <= len(code) / 5, true


@every_chapter
def test_asks_in_more_than_one_way(path):
    kinds = {exercises.registry()[name].kind for name in exercise_cells(path)}
    assert "predict" in kinds
    assert kinds & {"prove", "break", "open"} or number(path) == "0"


@every_chapter
def test_asides_are_folded(path):
    prose = [re.sub(r"(?s)<details>.*?</details>", "", cell.source) for cell in cells(path, "markdown")]
    assert not re.findall(r"(?<![.,\d])00[0-9]\b|claim \d|tests?/test_|err?ratum", "\n".join(prose))


@every_chapter
def test_a_caption_follows_its_picture(path):
    """With at most one cell of numbers between."""
    pictured, far = [], []
    for cell in cells(path):
        if cell.cell_type == "code":
            pictured.append(any("image/png" in output.get("data", {}) for output in cell.outputs))
        elif cell.source.startswith("*Figure") and not any(pictured[-2:]):
            far.append(cell.id)
        elif cell.cell_type == "markdown":
            pictured = []
    assert not far


@pytest.mark.parametrize("path", [path for path in CHAPTERS if "-m experiments." in path.read_text(encoding="utf-8")])
def test_an_experiment_has_the_options_that_a_chapter_names(path, capsys):
    prose = "\n".join(cell.source for cell in cells(path, "markdown"))
    for name, options in re.findall(r"-m experiments\.(\w+)([^`\n]*)", prose):
        with pytest.raises(SystemExit):
            importlib.import_module(f"experiments.{name}").main(["--help"])
        known = capsys.readouterr().out.split()
        assert set(re.findall(r"--?[a-z]+", options)) <= {one.strip("[],|") for one in known}


@pytest.mark.full
def test_the_tool_finds_a_changed_output(tmp_path, capsys):
    import nbformat

    ignored = nbformat.v4.new_code_cell("print(2)", id="two", metadata={"tags": ["nbval-ignore-output"]})
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print(1 + 1)", id="sum"), ignored])
    path = tmp_path / "07_test.ipynb"
    nbformat.write(notebook, path)
    assert notebooks.main([str(path)]) == 0
    assert cells(path, "code")[0].outputs[0].text == "2\n"
    made_by = [cell.metadata.get("made_by") for cell in cells(path)]
    assert made_by == [None, notebooks.digest(ignored)]
    ignored.source = "print(3)"
    assert made_by[1] != notebooks.digest(ignored)
    assert notebooks.main(["--check", str(path)]) == 0
    path.write_text(path.read_text(encoding="utf-8").replace('"2\\n"', '"3\\n"'), encoding="utf-8")
    assert notebooks.main(["--check", str(path)]) == 1
    assert "a fresh run differs" in capsys.readouterr().out
    path.write_text(path.read_text(encoding="utf-8").replace('"3\\n"', '"2\\n"') + "\n", encoding="utf-8")
    assert notebooks.main(["--check", str(path)]) == 1
    assert "not in normal form" in capsys.readouterr().out
