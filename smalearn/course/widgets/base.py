"""Base of all interactive pictures: the Python half of base.js and base.css."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import anywidget
import ipywidgets
import traitlets

__all__ = ["Checked", "Choice", "Explorer", "Size", "module"]

FOLDER = Path(__file__).parent
STILLS = FOLDER / "stills"
STYLE = (FOLDER / "base.css").read_text(encoding="utf-8")


def module(*scripts: str, **constants: object) -> str:
    """Join an ES module, which a browser can import from a string: what explorers share, and an explorer's scripts.

    The scripts stand beside base.js, and each may import names from those before it, one line an import. Such a line
    is left out, since all scripts share one scope; so every file stays a plain module and nothing has to be built.

    Example:
        >>> module("contraction_map.js").count("export default")
        1
    """
    lines = [f"const {name} = {json.dumps(value, ensure_ascii=False)};" for name, value in constants.items()]
    imported: list[str] = []
    for script in ("share.js", "reopen.js", "base.js", *scripts):
        for line in (FOLDER / script).read_text(encoding="utf-8").splitlines():
            if not line.startswith("import "):
                lines.append(line)
            elif not line.endswith(tuple(f' from "./{name}";' for name in imported)):
                raise ValueError(f"module: {script}, expected imports of one line from {imported}, got {line!r}")
        imported.append(script)
    return "\n".join(lines) + "\n"


class Size(traitlets.Int):
    """Trait that holds the size of an axis, from 1 to `max`; refuses others as the rest of the package does."""

    def __init__(self, default: int | None, max: int, **options: bool) -> None:
        super().__init__(default, min=1, max=max, **options)

    def validate(self, obj: traitlets.HasTraits, value: object) -> int:
        """Return the value; a ValueError where it is not one of the sizes."""
        if isinstance(value, int) and not isinstance(value, bool) and self.min <= value <= self.max:
            return value
        owner = f"{type(obj).__name__}: {self.name}"
        raise ValueError(f"{owner}, expected an int from {self.min} to {self.max}, got {value!r}")


class Checked(traitlets.Any):
    """Trait checked by `@validate` that also rejects None."""

    allow_none = False


class Choice(traitlets.TraitType):
    """Trait that holds one of some values of one type; refuses others as the rest of the package does."""

    def __init__(self, values: list) -> None:
        super().__init__(values[0])
        self.values = values

    def validate(self, obj: traitlets.HasTraits, value: object) -> object:
        """Return the value; a ValueError where it is not one of them."""
        if type(value) is type(self.values[0]) and value in self.values:
            return value
        owner, choices = f"{type(obj).__name__}: {self.name}", ", ".join(map(repr, self.values))
        raise ValueError(f"{owner}, expected one of {choices}, got {value!r}")


class Explorer(anywidget.AnyWidget):
    """Interactive picture, drawn in the browser by a script of its own, with its state shared with Python.

    A subclass sets `_esm = module("its_script.js")` and declares its state as traits tagged `sync=True`. Traits whose
    names begin with an underscore are constants for the script; `_given` holds the arguments that are no state, such
    as a text, so that script and Python can write the call, and is None where no call makes the explorer. Where no
    script runs, as on GitHub, a still picture stands for it, which `assets/stills.py` has taken in a browser.
    """

    _css = STYLE
    _given = traitlets.Dict(allow_none=True).tag(sync=True)

    def chosen(self) -> dict[str, object]:
        """Collect what can be chosen."""
        names = [name for name in self.traits(sync=True) if not name.startswith("_")]
        return {name: getattr(self, name) for name in names if name not in ipywidgets.DOMWidget.class_traits()}

    def still(self) -> Path:
        """Name the file for a still picture of the current state; there is one of each state that a chapter shows."""
        code = json.dumps([self.chosen(), self._given], sort_keys=True).encode()
        return STILLS / f"{type(self).__name__}-{hashlib.sha256(code).hexdigest()[:8]}.png"

    def png(self) -> bytes:
        """Read the still picture of the current state, or, where none was taken, that of the state at first."""
        path = self.still()
        return (path if path.exists() else STILLS / f"{type(self).__name__}.png").read_bytes()

    def __repr__(self) -> str:
        """The state, the same text on every machine."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.chosen().items())})"

    def _repr_mimebundle_(self, **options: object) -> tuple[dict, dict]:
        """The live picture, and the still one for readers whose page cannot show it: the live one goes first."""
        data, metadata = super()._repr_mimebundle_(**options)
        still = base64.b64encode(self.png()).decode("ascii")
        return data | {"image/png": still}, metadata
