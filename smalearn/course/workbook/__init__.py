"""Learners' copies of the chapters in `work/`: made, renewed, put back, counted. Nothing of theirs is overwritten.

A copy is known by the exercises in it, whatever its name, and an exercise by the name of its function, whatever its
number: a later version of the course may give that to another. `work/.originals` keeps every version of a chapter
that the learner was given: it tells a newer chapter from one that was offered before, and an answer from an untouched
stub.
"""

from smalearn.course.workbook import road
from smalearn.course.workbook.copies import reset, sync
from smalearn.course.workbook.notebook import chapters, unreadable
from smalearn.course.workbook.review import review
from smalearn.course.workbook.tally import ChapterProgress, progress, table

__all__ = ["ChapterProgress", "chapters", "progress", "reset", "review", "road", "sync", "table", "unreadable"]
