"""Make the learner's copies of the chapters, renew them, and put them back to what is published."""

import ast
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from smalearn.course.workbook.editions import Course, published, renumbered, with_past
from smalearn.course.workbook.notebook import (
    Notebook,
    answers,
    blank,
    chapters,
    dump,
    exercises,
    find,
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


def sync(folder: Path, work: Path, kernel: Mapping[str, object] = MappingProxyType({})) -> list[str]:
    """Copy missing chapters to `work`, without outputs, and put newer ones beside the learner's, answers carried over.

    A newer chapter becomes `01_name.new.ipynb` (`01_name.new.2.ipynb` where that name is taken), once for each version;
    outputs alone make no version. An answer is a stub that the learner changed; of several, the one in the file saved
    last counts. It goes where its exercise is now, whatever number and chapter that had. Where the new stub has other
    arguments, the answer stands below it, commented out; where no chapter has the exercise any more, at the end of its
    chapter, or of the first that took over from it. The learner's other cells stay in their file. A chapter that the
    learner deletes or renames comes back as published.

    Args:
        folder: of the course's chapters.
        work: folder of the learner's copies, created where missing.
        kernel: metadata about the kernel, for the copies: where JupyterLab finds what it would write itself, opening
            a copy does not change it.

    Returns:
        Lines that say what is new; none where every chapter is as published, or was offered before.

    Example:
        >>> for line in sync(Path("chapters"), Path("work")):  # doctest: +SKIP
        ...     print(line)
        There is a newer 01_start.ipynb: it is beside yours, as work/01_start.new.ipynb.
          Your answers are in it: 1.1, 1.2.
    """
    (work / ".originals").mkdir(parents=True, exist_ok=True)
    paths = chapters(folder)
    paths = chapters(folder)
    course_today = published(filter(None, map(read, paths)))
    versions = {path: notebook for path in originals(work) if (notebook := read(path))}
    course = with_past(course_today, versions.values())
    versions = {path: renumbered(notebook, course) for path, notebook in versions.items()}
    past = _Past(course, course.keys() - course_today.keys(), {path.stem for path in paths}, versions)
    return [line for path in paths for line in _sync(path, work, past, kernel)]


@dataclass(frozen=True)
class _Past:
    """Everything that the learner got before.

    Args:
        course: the exercises of today and, after them, those that are gone.
        gone: which of them are gone.
        stems: what today's chapters are called.
        versions: every version of a chapter, with today's numbers.
    """

    course: Course
    gone: set[str]
    stems: set[str]
    versions: dict[Path, Notebook]

    def lost(self, chapter: Notebook, stem: str) -> set[str]:
        """Find exercises that are gone from a chapter, and from gone chapters whose first exercise it has now."""
        lost = set()
        for path, notebook in self.versions.items():
            name, ids = path.name.rsplit(".", 2)[0], exercises(notebook).keys()
            first = next((id for id in self.course if id in ids), None)
            if name == stem or (name not in self.stems and first in exercises(chapter)):
                lost |= ids & self.gone
        return lost


def _sync(path: Path, work: Path, past: _Past, kernel: Mapping[str, object]) -> list[str]:
    """Do what `sync` does for one chapter."""
    chapter = read(path)
    if chapter is None:
        return [f"{path.parent.name}/{path.name} cannot be read as a notebook: it is left out."]
    versions, version = originals(work, path.stem), original(work, path, chapter)
    copy, data = work / path.name, path.read_bytes()
    has_copy = copy.exists() or any(work.glob(f"{path.stem}.new*.ipynb"))
    if has_copy and version in versions:
        return []
    if has_copy and not versions:  # a copy from elsewhere counts as one of this version
        write(version, data)
        return []
    lines = _carry_over(chapter, path.stem, work, past) if has_copy or not versions else []
    target = free(work, f"{path.stem}.new") if copy.exists() else copy
    write(target, dump(blank(chapter) | {"metadata": {**chapter["metadata"], **kernel}}))
    write(version, data)
    if has_copy:
        return [f"There is a newer {path.name}: it is beside yours, as {work.name}/{target.name}.", *lines]
    return lines and [f"{path.name} is new.", *lines]


def _carry_over(chapter: Notebook, stem: str, work: Path, past: _Past) -> list[str]:
    """Put the learner's answers into a chapter; return lines that say what was carried over, and what was not."""
    versions, current = [*past.versions.values(), chapter], set(exercises(chapter))
    ids = current | past.lost(chapter, stem)
    pairs = {path: (notebook, renumbered(notebook, past.course)) for path, notebook in notebooks(work).items()}
    pairs = {path: pair for path, pair in pairs.items() if ids & exercises(pair[1]).keys()}
    all_answers = answers((notebook for _, notebook in pairs.values()), versions)
    lines = _insert({id: answer for id, answer in all_answers.items() if id in ids}, chapter, versions[:-1])
    sources = {cell["source"].strip() for notebook in versions for cell in notebook["cells"]} | {"", GONE}
    is_new = not originals(work, stem)
    for path, (saved, current_copy) in pairs.items():
        labelled = [cell for cells in exercises(current_copy).values() for cell in cells]
        changed = [
            cell for cell in current_copy["cells"] if cell["source"].strip() not in sources and cell not in labelled
        ]
        if is_new and (numbers := _moved(saved, current_copy, current)):
            lines.append(f"  New numbers since {work.name}/{path.name}, which stays as it is: {numbers}.")
        if changed:
            lines.append(f"  Cells that you wrote or changed stay in {work.name}/{path.name}: {len(changed)}.")
    broken = [name for name in unreadable(work) if name.startswith(stem)]
    return lines + [f"  {work.name}/{name} cannot be read as a notebook: nothing is carried over." for name in broken]


def _moved(saved: Notebook, current_copy: Notebook, ids: set[str]) -> str:
    """List which of these exercises had another number: "7.1 is 10.1, 7.2 is 10.2"."""
    numbers = {}
    for old, new in zip(saved["cells"], current_copy["cells"], strict=True):
        if old["metadata"] != new["metadata"] and new["metadata"]["exercise"] in ids:
            numbers[old["metadata"]["exercise"]] = new["metadata"]["exercise"]
    return ", ".join(f"{old} is {new}" for old, new in numbers.items())


def _insert(sources: dict[str, str], chapter: Notebook, versions: list[Notebook]) -> list[str]:
    """Put answers in the place of their stubs, or near it where they do not fit; return lines that say which where."""
    stubs, fitting, changed = exercises(chapter), [], []
    for id in [id for id in stubs if id in sources]:
        stub = stubs[id][0]
        old_stubs = [exercises(notebook)[id][0]["source"] for notebook in versions if id in exercises(notebook)]
        if _fits(sources[id], stub["source"], old_stubs):
            fitting.append(id)
            stub["source"] = sources[id]
        else:
            changed.append(id)
            commented = "\n".join(f"# {line}".rstrip() for line in sources[id].splitlines())
            stub["source"] += f"\n\n\n{CHANGED}\n{commented}"
    gone = [id for id in sources if id not in stubs]
    if gone:
        chapter["cells"].append({"cell_type": "markdown", "id": "gone", "metadata": {}, "source": GONE})
    for number, id in enumerate(gone, start=1):
        cell = {"cell_type": "code", "id": f"gone-{number}", "metadata": {"exercise": id}}
        chapter["cells"].append(cell | {"execution_count": None, "outputs": [], "source": sources[id]})
    lines = {
        "Your answers are in it": fitting,
        "Other arguments now, so your answer is below the new stub, commented out": changed,
        "No longer in the chapter, so your answers are at its end": [id.split(" ")[0] for id in gone],
    }
    return [f"  {text}: {', '.join(ids)}." for text, ids in lines.items() if ids]


def _fits(answer: str, stub: str, old_stubs: list[str]) -> bool:
    """Say whether an answer can take the place of a stub: it has its arguments, or those of an earlier stub.

    So a learner may rename arguments, add optional ones, bind the function in another way, or be in mid-sentence.
    """
    expected, functions = _functions(stub), _functions(answer)
    if not expected:
        return True
    name, (arguments, _) = expected.popitem()
    if name in functions and functions[name][0] == arguments:
        return True
    if not any(_functions(old).get(name, ([], 0))[0] == arguments for old in old_stubs):
        return False
    return name not in functions or functions[name][1] <= len(arguments) <= len(functions[name][0])


def _functions(source: str) -> dict[str, tuple[list[str], int]]:
    """Map the name of each function in a cell to its arguments, and to how many of them have no default."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return {}
    parameters = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            names = [argument.arg for argument in node.args.posonlyargs + node.args.args]
            parameters[node.name] = names, len(names) - len(node.args.defaults)
    return parameters


def reset(work: Path, folder: Path, chapter: str, exercise: str | None = None) -> str:
    """Put a copy of a chapter, or one exercise in it, back to what is published, after a backup in `work/backups`.

    Args:
        work: folder of the learner's copies.
        folder: of the course's chapters.
        chapter: its number ("1", "01", "A") or the name of a file in `work`.
        exercise: id of the one exercise to put back; everything where None.

    Returns:
        A text that says what was done and where the backup is.

    Raises:
        ValueError: no such chapter or exercise (with a list of those that exist), or the file is not a notebook.
    """
    path, copy = _find(work, folder, chapter)
    published_chapter = read(path)
    if published_chapter is None:
        raise ValueError(f"reset: {path.parent.name}/{path.name} cannot be read as a notebook")
    data = dump(blank(published_chapter))
    report = f"{work.name}/{copy.name} is as published again."
    if exercise is not None:
        cells = exercises(published_chapter).get(exercise)
        if cells is None:
            ids = ", ".join(exercises(published_chapter)) or "none"
            raise ValueError(f"reset: no exercise {exercise!r} in {path.name}; it has {ids}")
        report = f"Exercise {exercise} in {report}"
        if copy.exists():
            data = dump(_with_exercise(copy, folder, exercise, cells))
    (work / ".originals").mkdir(parents=True, exist_ok=True)
    if copy.exists():
        report += f" Yours is kept as {work.name}/backups/{_back_up(copy)}."
    write(copy, data)
    write(original(work, path, published_chapter), path.read_bytes())
    return f"{report}\nIf it is open in JupyterLab, reload it there: File → Reload Notebook from Disk."


def _find(work: Path, folder: Path, chapter: str) -> tuple[Path, Path]:
    """Find a published chapter and the learner's copy by a number or by the name of a file in `work`."""
    name = Path(chapter).name
    is_file = name.endswith(".ipynb")
    path = find(folder, name.split(".")[0] if is_file else name)  # of 01_name.new.2.ipynb, but "1.1" is not a chapter
    copy = work / (name if is_file or not path else path.name)
    if path and (copy.name == path.name or copy.exists()):
        return path, copy
    raise ValueError(f"reset: no chapter {chapter!r}; there are {', '.join(path.stem for path in chapters(folder))}")


def _with_exercise(copy: Path, folder: Path, exercise: str, cells: list[dict]) -> Notebook:
    """Put the cells of an exercise back into the learner's notebook, in their place or at its end."""
    notebook = read(copy)
    if notebook is None:
        raise ValueError(f"reset: {copy.name} cannot be read as a notebook; reset the whole chapter")
    current = renumbered(notebook, published(filter(None, map(read, chapters(folder)))))
    old = exercises(current).get(exercise, [])
    places = [place for place, cell in enumerate(current["cells"]) if any(cell is other for other in old)]
    place = (places or [len(notebook["cells"])])[0]
    others = [cell for number, cell in enumerate(notebook["cells"]) if number not in places]
    return notebook | {"cells": others[:place] + blank({"cells": cells})["cells"] + others[place:]}


def _back_up(path: Path) -> str:
    """Keep a file's bytes under a dated name in the folder `backups` beside it; return that name."""
    folder = path.parent / "backups"
    folder.mkdir(exist_ok=True)
    backup = free(folder, f"{path.stem}.{time.strftime('%Y-%m-%d-%H%M')}")
    write(backup, path.read_bytes())
    return backup.name
