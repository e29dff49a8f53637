"""Make the learner's copies of the chapters, renew them, and put them back to what is published."""

import ast
import re
import time
from pathlib import Path

from smalearn.course.workbook.notebook import (
    Notebook,
    answers,
    dump,
    exercises,
    files,
    free,
    notebooks,
    original,
    originals,
    read,
    unreadable,
    write,
)

__all__ = ["reset", "sync"]

CHANGED = "# Your answer to an earlier form of this exercise, with other arguments:"
GONE = "## Your answers to exercises that this chapter no longer has"


def sync(chapters: Path, work: Path) -> list[str]:
    """Copy missing chapters to `work`, and put newer ones beside the learner's, with the answers carried over.

    A newer chapter becomes `01_name.new.ipynb` (`01_name.new.2.ipynb` where that name is taken), once for each version;
    outputs alone make no version. An answer is a stub that the learner changed; of several, the one in the file saved
    last counts. Where the new stub has other arguments, the answer stands below it, commented out; where the exercise
    is gone, at the end of the chapter. The learner's other cells stay in their file. A chapter that the learner deletes
    or renames comes back as published.

    Args:
        chapters: folder of the course's notebooks.
        work: folder of the learner's copies, created where missing.

    Returns:
        Lines that say what is new; none where every chapter is as published, or was offered before.

    Example:
        >>> for line in sync(Path("chapters"), Path("work")):  # doctest: +SKIP
        ...     print(line)
        There is a newer 01_start.ipynb: it is beside yours, as work/01_start.new.ipynb.
          Your answers are in it: 1.1, 1.2.
    """
    (work / ".originals").mkdir(parents=True, exist_ok=True)
    return [line for path in files(chapters) for line in _sync(path, work)]


def _sync(path: Path, work: Path) -> list[str]:
    """The same for one chapter."""
    chapter = read(path)
    if chapter is None:
        return [f"{path.parent.name}/{path.name} cannot be read as a notebook: it is left out."]
    given, version = originals(work, path.stem), original(work, path, chapter)
    mine, published = work / path.name, path.read_bytes()
    has_copy = mine.exists() or any(work.glob(f"{path.stem}.new*.ipynb"))
    if has_copy and version in given:
        return []
    if has_copy and not given:  # a copy from elsewhere counts as one of this version
        write(version, published)
        return []
    lines = _carry_over(chapter, given, work, path.stem) if has_copy or not given else []
    target = free(work, f"{path.stem}.new") if mine.exists() else mine
    write(target, dump(chapter) if lines else published)
    write(version, published)
    if has_copy:
        return [f"There is a newer {path.name}: it is beside yours, as {work.name}/{target.name}.", *lines]
    return lines and [f"{path.name} is new.", *lines]


def _carry_over(chapter: Notebook, given: list[Path], work: Path, stem: str) -> list[str]:
    """Put the learner's answers into a chapter; returns lines that say what was carried over, and what was not."""
    earlier = [notebook for path in given if (notebook := read(path))]
    ids = {id for notebook in [*earlier, chapter] for id in exercises(notebook)}
    copies = {path: notebook for path, notebook in notebooks(work).items() if ids & exercises(notebook).keys()}
    course = {cell["source"].strip() for notebook in [*earlier, chapter] for cell in notebook["cells"]} | {"", GONE}
    theirs = answers(copies.values(), [*earlier, chapter])
    lines = _insert({id: answer for id, answer in theirs.items() if id in ids}, chapter, earlier)
    for path, notebook in copies.items():
        labelled = [cell for cells in exercises(notebook).values() for cell in cells]
        own = [cell for cell in notebook["cells"] if cell["source"].strip() not in course and cell not in labelled]
        if own:
            lines.append(f"  Cells that you wrote or changed stay in {work.name}/{path.name}: {len(own)}.")
    broken = [name for name in unreadable(work) if name.startswith(stem)]
    return lines + [f"  {work.name}/{name} cannot be read as a notebook: nothing is carried over." for name in broken]


def _insert(theirs: dict[str, str], chapter: Notebook, earlier: list[Notebook]) -> list[str]:
    """Put answers in the place of their stubs, or near it where they do not fit; returns lines that say which where."""
    new, fitting, changed = exercises(chapter), [], []
    for id in [id for id in new if id in theirs]:
        stub = new[id][0]
        before = [exercises(notebook)[id][0]["source"] for notebook in earlier if id in exercises(notebook)]
        if _fits(theirs[id], stub["source"], before):
            fitting.append(id)
            stub["source"] = theirs[id]
        else:
            changed.append(id)
            commented = "\n".join(f"# {line}".rstrip() for line in theirs[id].splitlines())
            stub["source"] += f"\n\n\n{CHANGED}\n{commented}"
        for cell in new[id]:
            cell.update(outputs=[], execution_count=None)  # they were the stub's
    gone = [id for id in theirs if id not in new]
    if gone:
        chapter["cells"].append({"cell_type": "markdown", "id": "gone", "metadata": {}, "source": GONE})
    for id in gone:
        cell = {"cell_type": "code", "id": f"gone-{id.replace('.', '-')}", "metadata": {"exercise": id}}
        chapter["cells"].append(cell | {"execution_count": None, "outputs": [], "source": theirs[id]})
    lines = {
        "Your answers are in it": fitting,
        "Other arguments now, so your answer is below the new stub, commented out": changed,
        "No longer in the chapter, so your answers are at its end": gone,
    }
    return [f"  {text}: {', '.join(ids)}." for text, ids in lines.items() if ids]


def _fits(answer: str, stub: str, before: list[str]) -> bool:
    """Whether an answer can take the place of a stub: it has its arguments, or was asked for them before.

    So a learner may rename arguments, add optional ones, bind the function in another way, or be in mid-sentence.
    """
    asked, given = _functions(stub), _functions(answer)
    if not asked:
        return True
    name, (arguments, _) = asked.popitem()
    if name in given and given[name][0] == arguments:
        return True
    if not any(_functions(old).get(name, ([], 0))[0] == arguments for old in before):
        return False
    return name not in given or given[name][1] <= len(arguments) <= len(given[name][0])


def _functions(source: str) -> dict[str, tuple[list[str], int]]:
    """Name of each function that a cell defines -> its arguments, and how many of them have no default."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return {}
    found = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            names = [argument.arg for argument in node.args.posonlyargs + node.args.args]
            found[node.name] = names, len(names) - len(node.args.defaults)
    return found


def reset(work: Path, chapters: Path, chapter: str, exercise: str | None = None) -> str:
    """Put a copy of a chapter, or one exercise in it, back to what is published, after a backup in `work/backups`.

    Args:
        work: folder of the learner's copies.
        chapters: folder of the course's notebooks.
        chapter: its number ("1", "01") or the name of a file in `work`.
        exercise: id of the one exercise to put back; everything where None.

    Returns:
        A text that says what was done and where the backup is.

    Raises:
        ValueError: no such chapter or exercise (with a list of those that exist), or the file is no notebook.
    """
    path, mine = _find(work, chapters, chapter)
    published, data = read(path), path.read_bytes()
    if published is None:
        raise ValueError(f"reset: {chapters.name}/{path.name} cannot be read as a notebook")
    done = f"{work.name}/{mine.name} is as published again."
    if exercise is not None:
        cells = exercises(published).get(exercise)
        if cells is None:
            there = ", ".join(exercises(published)) or "none"
            raise ValueError(f"reset: no exercise {exercise!r} in {path.name}; it has {there}")
        done = f"Exercise {exercise} in {done}"
        if mine.exists():
            data = dump(_with_exercise(mine, exercise, cells))
    (work / ".originals").mkdir(parents=True, exist_ok=True)
    if mine.exists():
        done += f" Yours is kept as {work.name}/backups/{_back_up(mine)}."
    write(mine, data)
    write(original(work, path, published), path.read_bytes())
    return f"{done}\nIf it is open in JupyterLab, reload it there: File → Reload Notebook from Disk."


def _find(work: Path, chapters: Path, chapter: str) -> tuple[Path, Path]:
    """A published chapter and the learner's copy that are meant by a number or by the name of a file in `work`."""
    name = Path(chapter).name
    stem = name.split(".")[0] if name.endswith(".ipynb") else name  # of 01_name.new.2.ipynb, but "1.1" is no chapter
    for path in files(chapters):
        number = re.match(r"\d*", path.stem).group()
        if stem == path.stem or (stem.isdecimal() and number and int(stem) == int(number)):
            mine = work / (name if name.endswith(".ipynb") else path.name)
            if mine.name == path.name or mine.exists():
                return path, mine
    raise ValueError(f"reset: no chapter {chapter!r}; there are {', '.join(path.stem for path in files(chapters))}")


def _with_exercise(mine: Path, exercise: str, cells: list[dict]) -> Notebook:
    """The learner's notebook with the cells of an exercise put back in their place, or at its end."""
    notebook = read(mine)
    if notebook is None:
        raise ValueError(f"reset: {mine.name} cannot be read as a notebook; reset the whole chapter")
    old = exercises(notebook).get(exercise, [])
    places = [place for place, cell in enumerate(notebook["cells"]) if any(cell is other for other in old)]
    place = (places or [len(notebook["cells"])])[0]
    rest = [cell for number, cell in enumerate(notebook["cells"]) if number not in places]
    return notebook | {"cells": rest[:place] + cells + rest[place:]}


def _back_up(path: Path) -> str:
    """Keep a file's bytes under a dated name in the folder `backups` beside it; returns that name."""
    folder = path.parent / "backups"
    folder.mkdir(exist_ok=True)
    backup = free(folder, f"{path.stem}.{time.strftime('%Y-%m-%d-%H%M')}")
    write(backup, path.read_bytes())
    return backup.name
