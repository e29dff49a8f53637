"""Start of a user's server: bring `~/work` up to date with the chapters, then hand over to JupyterHub.

The chapters are those of the folder `course` in the user's home, which nbgitpuller fills, or else of the image.
"""

import os
import shutil
import sys
from pathlib import Path

from smalearn.course import workbook


def main() -> None:
    """Make the user's copies, and become the server."""
    pulled = Path.home() / "course" / "chapters"
    chapters = pulled if any(pulled.glob("*.ipynb")) else Path(os.environ["COURSE"]) / "chapters"
    print(*workbook.sync(chapters, Path.home() / "work"), sep="\n", flush=True)
    settings = [str(Path(os.environ["COURSE"]) / ".jupyter"), os.environ.get("JUPYTER_CONFIG_PATH", "")]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, settings))  # so that saved explorers come back
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    server = shutil.which("jupyterhub-singleuser", path=places)
    os.execv(server, [server, *sys.argv[1:]])


if __name__ == "__main__":
    main()
