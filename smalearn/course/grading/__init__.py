"""Grade notebooks that others wrote: each runs in a process of its own, and is judged out of its reach.

This process draws the inputs, knows the targets and compares. A submission's process gets the inputs and the cells,
runs those tagged `setup`, those of the exercises and the statements of others that the answers need
(`smalearn.course.grading.needed`), and sends back arrays as text: nothing that it says is executed here, and no cell is
even parsed here. Its package has no solutions, no oracles and no known wrong answers; our solution to an exercise comes
once the answer to it is judged. In a sandbox (`smalearn.course.grading.sandbox`) it sees neither files nor processes of
others. TEACHING.md says what a submission cannot do, and what it can.

What shows ✓ in the notebook is graded as it was, or its row says why not: where the order in which the cells ran gives
no right answer, that of the page is tried, then all cells that ran.
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
