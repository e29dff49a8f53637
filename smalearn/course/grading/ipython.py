"""What IPython adds to Python, as far as an answer needs it: a cell written as Python, and a shell that does nothing.

IPython itself says which lines are magics, help or shell commands. Magics that run code, `%time`, `%%capture`, are
replaced by that code; the others become calls of `Shell`, which runs nothing outside of the notebook.
"""

import ast
import contextlib
import importlib
import os
import re
import sys

__all__ = ["Quiet", "Shell", "plain"]

FOREIGN = {"bash", "sh", "script", "system", "sx", "!", "cmd", "perl", "ruby", "pypy", "python", "python2", "python3"}
FOREIGN |= {"html", "HTML", "javascript", "js", "latex", "markdown", "svg", "SVG", "writefile", "file", "cython"}
RUNNING = {"time", "timeit", "prun", "memit", "lprun", "mprun"}  # on a line: `%time Y = f(X)`
PYLAB = "import numpy as np\nfrom matplotlib import pyplot as plt\nfrom numpy import *\nfrom matplotlib.pyplot import *"
OUTSIDE = {"pip", "conda", "mamba", "uv", "cd", "system", "sx", "!", "ls", "cat", "cp", "mv", "rm", "mkdir", "store"}


def plain(source: str) -> str:
    """Write a cell as Python; one that is Python already stays as it is."""
    if "get_ipython" not in source:
        with contextlib.suppress(SyntaxError):
            ast.parse(source)
            return source
    from IPython.core.inputtransformer2 import TransformerManager

    text = TransformerManager().transform_cell(source)
    return ast.unparse(ast.fix_missing_locations(_Magics().visit(ast.parse(text))))


class _Magics(ast.NodeTransformer):
    """Rewriter that puts the code which a magic runs in the place of the magic."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.stmt]:
        """Replace a statement by those of its magic."""
        match _called(node.value):
            case "run_cell_magic", str(name), str(line), str(body) if name not in FOREIGN:
                before = _code(_without_options(line)) if name == "timeit" else []
                return [*before, *_code(body), *(_captured(line) if name == "capture" else [])] or ast.Pass()
            case "run_line_magic", str(name), str(line) if name in RUNNING:
                return _code(_without_options(line)) or ast.Pass()
            case "run_line_magic", "pylab", str():
                return _code(PYLAB)
            case "run_line_magic", "env" | "set_env", str(line) if found := re.match(r"(\w+)[ =]\s*(.*)", line):
                return _code(f"import os\nos.environ[{found[1]!r}] = {found[2]!r}")
            case "run_line_magic", "run", str(line) if line.split():
                return _code(f"exec(open({line.split()[-1]!r}, encoding='utf-8').read())")
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace the value in `y = %time f(x)`."""
        match _called(node):
            case "run_line_magic", str(name), str(line) if name in RUNNING:
                match _code(_without_options(line)):
                    case [ast.Expr(value)]:
                        return value
        return self.generic_visit(node)


def _called(node: ast.AST) -> tuple:
    """Method of `get_ipython()` that is called, and its arguments; empty for another expression."""
    match node:
        case ast.Call(ast.Attribute(ast.Call(ast.Name("get_ipython")), method), arguments):
            return method, *(argument.value for argument in arguments if isinstance(argument, ast.Constant))
    return ()


def _code(text: str) -> list[ast.stmt]:
    return ast.parse(plain(text)).body


def _without_options(line: str) -> str:
    """Leave out `-n 10 -q` and the like: words from the left, as long as there is an option or what follows no code."""
    while line := line.strip():
        with contextlib.suppress(SyntaxError):
            if not line.startswith("-"):
                plain(line)
                return line
        line = line.partition(" ")[2]
    return ""


def _captured(line: str) -> list[ast.stmt]:
    """Bind the name that `%%capture name` gives to what was printed."""
    names = [word for word in line.split() if word.isidentifier()]
    return ast.parse("".join(f"{name} = get_ipython().captured\n" for name in names)).body


class Quiet:
    """Object of which everything can be asked, and which does nothing."""

    def __getattr__(self, name: str) -> "Quiet":
        if name.startswith("__"):
            raise AttributeError(name)
        return Quiet()

    def __call__(self, *args: object, **kwargs: object) -> "Quiet":
        """Do nothing."""
        return self


class Shell(Quiet):
    """Stand-in for what `get_ipython()` returns; `left` has the commands that did not run."""

    def __init__(self, user_ns: dict):
        self.user_ns, self.left, self.old = user_ns, [], {}

    def system(self, command: str, *args: object) -> None:
        """Note a shell command, and do not run it."""
        self.left.append(f"!{command}")

    def getoutput(self, command: str, *args: object, **kwargs: object) -> None:
        """Refuse a shell command whose output is wanted."""
        raise RuntimeError(f"shell commands do not run here: !{command}")

    def run_cell(self, source: str, *args: object, **kwargs: object) -> None:
        """Run the source of a cell."""
        exec(compile(plain(source), "<cell>", "exec"), self.user_ns)

    ex = run_cell

    def run_line_magic(self, name: str, line: str, *args: object) -> None:
        """Note a magic that would reach outside, and pass over others."""
        if name == "cd" and os.path.isdir(line):
            os.chdir(line)
        elif name in OUTSIDE:
            self.left.append(f"%{name} {line}")

    def run_cell_magic(self, name: str, line: str, body: str) -> None:
        """Write the file of `%%writefile`, for the notebook alone; note what is for other programs."""
        if name not in ("writefile", "file"):
            self.left.append(f"%%{name}")
            return
        line = re.sub(r"\$(\w+)|\{(\w+)\}", lambda name: str(self.user_ns.get(name[1] or name[2], name[0])), line)
        *options, path = line.split()
        path = os.path.abspath(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a" if options else "w", encoding="utf-8") as file:
            file.write(body)
        importlib.invalidate_caches()
        for module in [one for one in sys.modules.values() if getattr(one, "__dict__", {}).get("__file__") == path]:
            from IPython.extensions.autoreload import superreload

            superreload(module, old_objects=self.old)  # as `%autoreload` does

    def magic(self, line: str) -> None:
        """Run a line magic, the old way."""
        self.run_line_magic(*line.partition(" ")[::2])
