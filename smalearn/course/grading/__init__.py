"""Grade notebooks that others wrote: each runs in a process of its own, and is judged out of its reach.

This process draws the inputs, knows the targets and compares. A submission's process gets the inputs and the cells,
runs those tagged `setup`, those of the exercises and the statements of others that the answers need
(`smalearn.course.grading.needed`), and sends back arrays as text: nothing that it says is executed here, and no cell is
even parsed here. Its package has no solutions, no oracles and no known wrong answers; our solution to an exercise comes
once the answer to it is judged.

What shows ✓ in the notebook is graded as it was, or its row says why not: where the order in which the cells ran gives
no right answer, that of the page is tried, then all cells that ran. Nothing outside of the notebook is there: no files,
no shell commands, nobody who answers `input()`.

In a sandbox (`smalearn.course.grading.sandbox`) the process sees neither your files nor other submissions nor other
processes, has no network, and ends with all that it started. So these cost a submission's own row alone: a patched
`check`, edited outputs, `exit`, loops, kills, detached processes, endless output, forged messages, objects that equal
everything, and files that are links, pipes or devices. Where the system has no sandbox, `grade` says so before it
begins, and what holds is only what this process does: it calls nothing of a submission's, and ends it in time.

Memory and cores are shared by all that run at a time. The memory limit is of one process, and a submission may start
64; where they take all, the system ends submissions first, and not always the one to blame. So whose process was lost
is graded once more, alone, after the others.

What is not prevented anywhere:

- The way to an answer (◐) is measured in the submission's process, and 4.6 is judged there. 4.6 has a flag, and counts
  once a teacher has read it. Who forges the other gets ✓ in place of ◐.
- The library is there, and an answer may call it, unless the exercise's `Way` forbids that.
- Solutions can be copied by hand from the course, which is public: long answers that are the same have a flag.
- Who keeps all cores busy slows the others; a right answer then needs more of its time.
"""

from smalearn.course.grading.alike import pairs
from smalearn.course.grading.choice import exercises, load, weigh
from smalearn.course.grading.edition import students
from smalearn.course.grading.gradebook import Gradebook, Line, Row, Terms, lines, summary, write, write_import
from smalearn.course.grading.grader import Limits
from smalearn.course.grading.handins import files
from smalearn.course.grading.nbgrader import chapters, export
from smalearn.course.grading.pages import write_pages
from smalearn.course.grading.pool import Order, grade, grade_elsewhere, seed_for
from smalearn.course.grading.roster import Roster
from smalearn.course.grading.sandbox import opened
from smalearn.course.grading.submission import Submission, read

__all__ = [
    "Gradebook",
    "Limits",
    "Line",
    "Order",
    "Roster",
    "Row",
    "Submission",
    "Terms",
    "chapters",
    "exercises",
    "export",
    "files",
    "grade",
    "grade_elsewhere",
    "lines",
    "load",
    "opened",
    "pairs",
    "read",
    "seed_for",
    "students",
    "summary",
    "weigh",
    "write",
    "write_import",
    "write_pages",
]
