"""The command `smalearn grade`: what is to be graded, row after row into the gradebook, and how far it is."""

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence

from smalearn.course.executors import executor
from smalearn.course.exercises import Exercise
from smalearn.course.grading import choice, roster
from smalearn.course.grading.alike import pairs
from smalearn.course.grading.gradebook import Gradebook, Row, Terms, summary, written
from smalearn.course.grading.grader import Limits
from smalearn.course.grading.pages import write_pages
from smalearn.course.grading.pool import Order, grade, grade_elsewhere, seed_for
from smalearn.course.grading.sandbox import opened
from smalearn.course.grading.submission import Submission, read

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    """Do what `smalearn grade` is asked to do; return its exit status."""
    if args.exercises:
        choice.load(args.exercises)
    listed = roster.read(args.roster, args.name_column, args.id_column) if args.roster else roster.Roster()
    ours = [*written(args.output), args.output.with_suffix(".slurm"), args.roster, args.weights, args.exercises]
    found = read(args.files, listed, filter(None, ours))
    submissions = [submission for submission in found if submission.student]
    weights = choice.weigh(submissions, args.weights)
    terms = Terms(args.partial, args.flagged, args.cases, args.due)
    book = Gradebook(args.output, listed, terms)
    todo = [submission for submission in submissions if not book.has(submission, weights)]
    try:
        _grade(book, todo, len(submissions) - len(todo), weights, args)
    except KeyboardInterrupt:
        done = sum(book.has(submission, weights) for submission in submissions)
        said = f"{done} of {len(submissions)} are graded; the same command goes on from there."
        print(f"\nStopped: {said}", file=sys.stderr)
        return 130
    book.publish()
    write_pages(book.lines, terms, pairs(submissions, list(weights)), book.pages)
    print(summary(book.lines, terms), *_left_out(found), sep="\n")
    print(f"The table: {args.output}", f"The class, and pages to give back: {book.pages / 'index.html'}", sep="\n")
    return int(any(map(book.problem, submissions)))


def _left_out(found: Sequence[Submission]) -> list[str]:
    """Say what is not graded and nobody's only hand-in, those of one folder on one line."""
    names = {}
    for submission in found:
        if not submission.student:
            names.setdefault((submission.path.parent, submission.problem), []).append(submission.path.name)
    return [f"{folder / ', '.join(those)}: {problem}" for (folder, problem), those in names.items()]


def _grade(
    book: Gradebook, todo: Sequence[Submission], done: int, weights: Mapping[str, float], args: argparse.Namespace
) -> None:
    """Grade what is to be done, and say after each how far it is."""
    total, exercises = done + len(todo), choice.exercises(weights)
    if done:
        print(f"{done} of {total} are graded already", file=sys.stderr)
    if not todo:
        return
    limits = Limits(notebook=args.seconds, memory=int(args.memory * 2**30))
    seed = seed_for(exercises)  # another for each run: a page that was given back tells the last one
    with contextlib.closing((_here if args.on == "local" else _elsewhere)(todo, exercises, limits, seed, args)) as rows:
        for number, row in enumerate(rows, start=done + 1):
            book.add(row, weights)
            print(f"[{number}/{total}] {row.student}", file=sys.stderr)


def _here(
    todo: Sequence[Submission], exercises: Mapping[str, Exercise], limits: Limits, seed: int, args: argparse.Namespace
) -> Iterator[Row]:
    """Grade on this computer, in the strongest sandbox that works here."""
    with opened() as box:
        if box.weakness:
            print(f"No sandbox: {box.weakness}. `smalearn grade --help` says what helps.", file=sys.stderr)
        yield from grade(todo, exercises, box, limits, args.jobs, seed)


def _elsewhere(
    todo: Sequence[Submission], exercises: Mapping[str, Exercise], limits: Limits, seed: int, args: argparse.Namespace
) -> Iterator[Row]:
    """Grade on the workers of `--on`."""
    own = args.exercises.read_text(encoding="utf-8") if args.exercises else ""
    with contextlib.ExitStack() as stack:
        try:
            pool = stack.enter_context(executor(args.on, 1, args.output.with_suffix(".slurm")))
            yield from grade_elsewhere(pool, todo, Order(tuple(exercises), limits, seed, own))
        except (ImportError, ValueError) as error:
            raise ValueError(f"grade: {str(error).removeprefix('grade: ')}") from error
