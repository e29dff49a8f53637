"""Say what is here, what is not, what its lack costs a learner, and the line that gets it: `smalearn doctor`.

Nothing in this folder needs torch, or anything else that it looks for, to be installed.
"""

import smalearn.course.doctor.probes  # noqa: F401  (puts its probes on the list)
from smalearn.course.doctor.findings import Finding, can_work, render, report

__all__ = ["Finding", "can_work", "render", "report"]
