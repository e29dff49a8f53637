"""Likeness of answers: the share of passages that two have in common, whatever their names, comments and layout."""

import io
import itertools
import keyword
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from smalearn.course.grading.submission import Submission

__all__ = ["Pair", "alike", "pairs", "passages"]

PASSAGE = 10  # tokens
SHORT = 60  # tokens, about five lines: below, to write the same is chance
LONGEST = 100_000  # characters of an answer that is compared
LIKE = 0.8
SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass(frozen=True)
class Pair:
    """Two students with like answers: exercise id -> the share of passages that these have in common."""

    students: tuple[str, str]
    shares: dict[str, float]

    def __str__(self) -> str:
        likeness = ", ".join(f"{id} {share:.0%}" for id, share in self.shares.items())
        return f"{' and '.join(self.students)}: {likeness}"


def alike(one: str, other: str) -> float:
    """Share of passages that two answers have in common, of the shorter one's; 0 where one is short, or not Python."""
    return _share(passages(one), passages(other))


def pairs(submissions: Sequence[Submission], ids: Sequence[str]) -> list[Pair]:
    """Find the pairs of students whose answers are alike, those with the most such answers first."""
    answers = {id: _passages_of(submissions, id) for id in ids}
    found, none = [], frozenset()
    for one, other in itertools.combinations(sorted({submission.student for submission in submissions}), 2):
        shares = {id: _share(known.get(one, none), known.get(other, none)) for id, known in answers.items()}
        if shares := {id: share for id, share in shares.items() if share >= LIKE}:
            found.append(Pair((one, other), shares))
    return sorted(found, key=lambda pair: (-len(pair.shares), pair.students))


def _passages_of(submissions: Sequence[Submission], id: str) -> Mapping[str, frozenset]:
    return {submission.student: passages(submission.answer(id)) for submission in submissions if id in submission.cells}


def _share(one: frozenset, other: frozenset) -> float:
    return len(one & other) / min(len(one), len(other)) if one and other else 0.0


def passages(source: str) -> frozenset:
    """Collect the passages of an answer: ten tokens, with names numbered as they occur in them; none if it is short."""
    tokens = _tokens(source) if len(source) < LONGEST else []
    if len(tokens) < SHORT:
        return frozenset()
    return frozenset(_numbered(tokens[start : start + PASSAGE]) for start in range(len(tokens) - PASSAGE + 1))


def _tokens(source: str) -> list[str]:
    """List what computes: names of variables begin with a space."""
    tokens, before = [], tokenize.NEWLINE
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            is_doc = token.type == tokenize.STRING and before in SKIPPED
            before = token.type
            if token.type in SKIPPED or is_doc:
                continue
            is_variable = token.type == tokenize.NAME and not keyword.iskeyword(token.string) and tokens[-1:] != ["."]
            tokens.append(f" {token.string}" if is_variable else token.string)
    except (tokenize.TokenError, SyntaxError, RecursionError):
        return []
    return tokens


def _numbered(tokens: list[str]) -> tuple[str, ...]:
    numbers = {}
    return tuple(numbers.setdefault(token, f" {len(numbers)}") if token[0] == " " else token for token in tokens)
