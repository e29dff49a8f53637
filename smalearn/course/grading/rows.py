"""Row of the gradebook: what came of each exercise in one file, and why."""

from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["CUT", "PARTIAL", "Row"]

PARTIAL = 0.5  # of the points, for a right answer that was not found as asked
CUT = "not graded to the end"  # begins the note on a notebook of which that is so


@dataclass
class Row:
    """Outcomes of one file.

    Args:
        student: who handed it in.
        path: the file.
        outcomes: exercise id -> "passed", "not as asked", "failed", "not started", "error" or "timeout", as in `check`;
            "missing" where it is not in the notebook, "lost" where its process ended or had to be ended, also when it
            ran alone, "not run" where the process was gone.
        notes: exercise id, or "" for the notebook as a whole -> why, in a few words.
        flags: exercise id -> what a teacher should look at before it counts.
        misconceptions: exercise id -> the one that the answer shows.
        cards: exercise id -> what `check` would show of it, as HTML.
        worth: exercise id -> points that it can bring.
        digest: of the file.
        time: when the file was changed last, in seconds since 1970.
        seed: of the cases' random data.
    """

    student: str
    path: Path
    outcomes: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)
    misconceptions: dict[str, str] = field(default_factory=dict)
    cards: dict[str, str] = field(default_factory=dict)
    worth: dict[str, float] = field(default_factory=dict)
    digest: str = ""
    time: float = 0.0
    seed: int = 0

    @property
    def ran(self) -> bool:
        """Whether anything in it was judged."""
        return any(outcome != "not run" for outcome in self.outcomes.values())

    @property
    def broke_off(self) -> bool:
        """Whether its process was lost, by its own doing or by what ran beside it."""
        return "lost" in self.outcomes.values() or self.notes.get("", "").startswith(CUT)

    def points(self, partial: float = PARTIAL, flagged: float = 0) -> dict[str, float]:
        """Map each exercise that counts to its points.

        Args:
            partial: part of the weight for what is right but not as asked.
            flagged: part of the points that counts for what has a flag.
        """
        parts = {"passed": 1, "not as asked": partial}
        shares = {id: flagged if id in self.flags else 1 for id in self.worth}
        return {id: worth * parts.get(self.outcomes.get(id), 0) * shares[id] for id, worth in self.worth.items()}
