"""Course as a site of plain files: it needs no server, no network and no kernel, and its explorers still move.

What a reader sees is what the chapters hold: nothing is executed but the cells that make explorers, since their state
is not stored.
"""

from smalearn.course.site.build import build
from smalearn.course.site.claims import Claim, claims, table

__all__ = ["Claim", "build", "claims", "table"]
