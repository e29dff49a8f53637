"""Make the learner's copies of the chapters, renew them, and put them back to what is published."""

import ast
import itertools
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from smalearn.course.workbook.names import Numbers, published, renumbered, with_gone
from smalearn.course.workbook.notebook import (
    Notebook,
    alone,
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


def sync(
    folder: Path,
    work: Path,
    kernel: Mapping[str, object] = MappingProxyType({}),
    made: Mapping[Path, Notebook] = MappingProxyType({}),
) -> list[str]:
    """Copy missing chapters to `work`, without outputs, and put newer ones beside the learner's.

    A newer chapter becomes `01_name.new.ipynb` (`01_name.new.2.ipynb` where that name is taken), once for each version;
    outputs alone make no version. The learner's answers are in it, where their exercises still have the arguments that
    they had, and the cells that the learner added to it, behind those that they stood behind; everything else stays in
    the learner's files, none of which is changed. An answer is a stub that the
    learner changed; of several, the one in the file saved last counts. It goes where its exercise is now, whatever
    number and chapter that had. A chapter that the learner deletes or renames comes back as published. Notebooks
    `made` of the chapters' cells, each under the path that its file would have, are treated alike.

    Copies get the metadata `kernel`: where JupyterLab finds what it would write itself, opening one does not change it.

    Example:
        >>> for line in sync(Path("chapters"), Path("work")):  # doctest: +SKIP
        ...     print(line)
        There is a newer 01_start.ipynb: it is beside yours, as work/01_start.new.ipynb.
          Your answers are in it: 1.1, 1.2.
    """
    with alone(work):
        numbers = _numbers(folder, work)
        past = [renumbered(notebook, numbers) for notebook in map(read, originals(work)) if notebook]
        published = itertools.chain(((path, read(path)) for path in chapters(folder)), made.items())
        return [line for path, chapter in published for line in _sync(path, chapter, work, numbers, past, kernel)]


def _numbers(folder: Path, work: Path) -> Numbers:
    """Number the exercises of a course, and name those that it had in versions which the learner was given."""
    now, past = (list(filter(None, map(read, paths))) for paths in (chapters(folder), originals(work)))
    return with_gone(published(now), past)


def _sync(
    path: Path,
    chapter: Notebook | None,
    work: Path,
    numbers: Numbers,
    past: list[Notebook],
    kernel: Mapping[str, object],
) -> list[str]:
    """Do what `sync` does for one chapter."""
    if chapter is None:
        return [f"{path.parent.name}/{path.name} cannot be read as a notebook: it is left out."]
    versions, version = originals(work, path.stem), original(work, path, chapter)
    copy, data = work / path.name, dump(chapter)
    has_copy = copy.exists() or any(work.glob(f"{path.stem}.new*.ipynb"))
    if has_copy and version in versions:
        return []
    if has_copy and not versions:  # a copy from elsewhere counts as one of this version
        write(version, data)
        return []
    lines = _carry_over(chapter, work, numbers, past) if has_copy or not versions else []
    if count := _take_over(chapter, (one for file, one in notebooks(work).items() if _is_copy(file, path)), past):
        lines.append(f"  Cells that you added are in it: {count}.")
    target = free(work, f"{path.stem}.new") if copy.exists() else copy
    fresh = blank(chapter)
    write(target, dump(fresh | {"metadata": fresh["metadata"] | kernel}))
    write(version, data)
    if not has_copy:
        return lines and [f"{path.name} is new.", *lines]
    broken = [name for name in unreadable(work) if name.startswith(path.stem)]
    lines += [f"  {work.name}/{name} cannot be read as a notebook: nothing is carried over." for name in broken]
    return [f"There is a newer {path.name}: it is beside yours, as {work.name}/{target.name}.", *lines]


def _carry_over(chapter: Notebook, work: Path, numbers: Numbers, past: list[Notebook]) -> list[str]:
    """Put the learner's answers into a chapter, where they fit; return lines that say which."""
    copies = [renumbered(notebook, numbers) for notebook in notebooks(work).values()]
    sources, fitting, staying = answers(copies, [*past, chapter]), [], []
    for id, (stub, *_) in exercises(chapter).items():
        if id not in sources:
            continue
        before = [exercises(notebook)[id][0]["source"] for notebook in past if id in exercises(notebook)]
        if _arguments(stub["source"]) in (None, *map(_arguments, [sources[id], *before])):
            stub["source"] = sources[id]
            fitting.append(id)
        else:
            staying.append(id)
    lines = {
        "Your answers are in it": fitting,
        "They take other arguments now; your answers stay in your file": staying,
    }
    return [f"  {text}: {', '.join(ids)}." for text, ids in lines.items() if ids]


def _is_copy(file: Path, path: Path) -> bool:
    """Say whether a file has the name of a chapter's copy: 01_name.ipynb, 01_name.new.2.ipynb."""
    return file.name.partition(".")[0] == path.stem


def _take_over(chapter: Notebook, copies: Iterable[Notebook], past: list[Notebook]) -> int:
    """Put into a chapter the cells that no version of the course had; return how many."""
    published = [cell for notebook in [*past, chapter] for cell in notebook["cells"]]
    known = {cell.get("id") for cell in published} | {None}
    texts = {cell["source"].strip() for cell in published} | {""}  # a program may have given every cell another id
    count = 0
    for copy in copies:
        place = 0
        for cell in copy["cells"]:
            ids, id = [one.get("id") for one in chapter["cells"]], cell.get("id")
            if id in ids:
                place = ids.index(id) + 1
            elif id not in known and cell["source"].strip() not in texts and "exercise" not in cell["metadata"]:
                chapter["cells"].insert(place, cell)
                place, count = place + 1, count + 1
    return count


def _arguments(source: str) -> list[str] | None:
    """Names of the arguments of the last function in a cell, after helpers and kernels; None where there is none."""
    try:
        functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError):
        return None
    return [one.arg for one in functions[-1].args.posonlyargs + functions[-1].args.args] if functions else None


def reset(
    work: Path,
    folder: Path,
    chapter: str,
    exercise: str | None = None,
    made: Mapping[Path, Notebook] = MappingProxyType({}),
) -> str:
    """Put a copy of a chapter, or one exercise in it, back to what is published, after a backup in `work/backups`."""
    with alone(work):
        path, copy = _find(work, folder, chapter, made)
        return _reset(path, made.get(path) or read(path), copy, folder, exercise)


def _reset(path: Path, published_chapter: Notebook | None, copy: Path, folder: Path, exercise: str | None) -> str:
    work = copy.parent
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
    if copy.exists():
        report += f" Yours is kept as {work.name}/backups/{_back_up(copy)}."
    write(copy, data)
    write(original(work, path, published_chapter), dump(published_chapter))
    return f"{report}\nIf it is open in JupyterLab, reload it there: File → Reload Notebook from Disk."


def _find(work: Path, folder: Path, chapter: str, made: Iterable[Path]) -> tuple[Path, Path]:
    """Find a published chapter and the learner's copy by a number or by the name of a file in `work`."""
    name = Path(chapter).name
    is_file = name.endswith(".ipynb")
    stem = name.split(".")[0] if is_file else name  # of 01_name.new.2.ipynb, but "1.1" is not a chapter
    path = next((path for path in made if path.stem == stem), None) or find(folder, stem)
    copy = work / (name if is_file or not path else path.name)
    if path and (copy.name == path.name or copy.exists()):
        return path, copy
    raise ValueError(f"reset: no chapter {chapter!r}; there are {', '.join(path.stem for path in chapters(folder))}")


def _with_exercise(copy: Path, folder: Path, exercise: str, cells: list[dict]) -> Notebook:
    """Put the cells of an exercise back into the learner's notebook, in their place or at its end."""
    notebook = read(copy)
    if notebook is None:
        raise ValueError(f"reset: {copy.name} cannot be read as a notebook; reset the whole chapter")
    current = renumbered(notebook, _numbers(folder, copy.parent))
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
