"""Grade notebooks that others wrote: each runs in a process of its own, and is judged out of its reach.

This process draws the inputs, knows the targets and compares. A submission's process gets the inputs, runs the cells
tagged `setup` and those of the exercises, and sends back arrays, as raw bytes: nothing that it says is executed here,
and only right answers to inputs that it did not choose earn points.

What earns nothing, and costs the row of the submission alone: a `check` that is redefined or patched, edited outputs
and metadata, `exit` and `os._exit`, a loop without end, endless output, arrays larger than the memory limit, a forged
or broken message on the channel of the answers, an answer of the wrong type, shape or dtype, NaN, an object that
equals everything. An exercise that ends the process costs itself: the others run again in a new one.

What is not prevented:

- A submission runs as you. It can use the network, read and delete your files, stop your programs, start processes
  without end. Grade in a container without network if you do not know who wrote it, never as root.
- The course's solutions are public, and importable. What copies them is marked in the table, by names that it uses or
  by its normalised code; what hides it well is not. An exercise of your own is not shown to the submissions, but its
  inputs are.
- An exercise that hands over a judge as an argument (4.6) is judged inside the submission: the table says that it is
  to be read.
- Memory is limited on Linux alone, and Windows has no limits but time. There, a process that a submission started, and
  everywhere one that left its session, may survive it.
"""

from smalearn.course.grading.nbgrader import chapters, export
from smalearn.course.grading.rows import Limits, Row, grade
from smalearn.course.grading.submission import Submission, read
from smalearn.course.grading.table import exercises, files, load, summary, weigh, write

__all__ = [
    "Limits",
    "Row",
    "Submission",
    "chapters",
    "exercises",
    "export",
    "files",
    "grade",
    "load",
    "read",
    "summary",
    "weigh",
    "write",
]
