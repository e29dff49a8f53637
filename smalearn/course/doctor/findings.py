"""Ask every probe, and put what they found into one block of text for a bug report."""

import os
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass

__all__ = ["PROBES", "Finding", "can_work", "probe", "render", "report", "said"]


@dataclass(frozen=True)
class Finding:
    """What one probe found.

    Args:
        name: of what was looked for.
        status: "ok"; "missing"; "warning" where it is there and something is wrong with it.
        found: version, size, or what is wrong.
        cost: what a learner cannot do, or what happens instead; empty where all is well.
        remedy: the line that gets it, or what to do.
        needed: whether a learner can do nothing where it is missing.
    """

    name: str
    status: str
    found: str
    cost: str = ""
    remedy: str = ""
    needed: bool = False


PROBES: dict[str, tuple[Callable[[], tuple], bool]] = {}  # name -> (probe, needed)


def probe(name: str, needed: bool = False) -> Callable:
    """Put a probe on the list."""

    def add(look: Callable[[], tuple]) -> Callable[[], tuple]:
        PROBES[name] = look, needed
        return look

    return add


def report() -> list[Finding]:
    """Look at everything, in the current folder; takes about as long as importing torch.

    Returns:
        A finding for each of `PROBES`.
    """
    findings = []
    for name, (look, needed) in PROBES.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answer = look()
        except (Exception, SystemExit) as error:
            answer = "warning", said(error), "this could not be looked at", "report it, with this text"
        findings.append(Finding(name, *answer, needed=needed))
    return findings


def can_work(findings: Iterable[Finding]) -> bool:
    """Whether nothing is missing that a learner cannot do without."""
    return not any(finding.needed and finding.status == "missing" for finding in findings)


def render(findings: Iterable[Finding]) -> str:
    """One block to paste into a bug report: plain ASCII, the home folder as ~, and no user's name.

    Example:
        >>> print(render([Finding("Triton", "missing", "not installed", "nothing so far", "nothing")]))
        ```text
        missing  Triton: not installed
                 so: nothing so far
                 do: nothing
        You can work: everything that the course needs is here.
        ```
    """
    lines, lacking = [], []
    for finding in findings:
        lines.append(f"{finding.status:<9}{finding.name}: {finding.found}")
        lines += [f"{'':9}so: {finding.cost}"] if finding.cost else []
        lines += [f"{'':9}do: {finding.remedy}"] if finding.remedy else []
        lacking += [] if can_work([finding]) else [finding.name]
    if lacking:
        lines.append(f"You cannot work yet: {', '.join(lacking)}.")
    else:
        lines.append("You can work: everything that the course needs is here.")
    text = _anonymous("\n".join(lines)).replace("`", "'")
    return f"```text\n{text.encode('ascii', 'replace').decode()}\n```"


def _anonymous(text: str) -> str:
    """The text with the home folder as ~, and without the user's name in other paths."""
    home = os.path.expanduser("~")
    user = os.path.basename(home)
    if not user:
        return text  # a container whose home is the root
    for folder in (os.path.realpath(home), home):
        for form in (folder, folder.replace("\\", "\\\\"), folder.replace("\\", "/")):
            text = re.sub(rf"{re.escape(form)}(?![\w.-])", "~", text, flags=re.IGNORECASE)
    return re.sub(rf"(?<=[\\/]){re.escape(user)}(?![\w.-])", "<user>", text, flags=re.IGNORECASE)


def said(error: BaseException) -> str:
    """An exception in one line of bearable length."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
