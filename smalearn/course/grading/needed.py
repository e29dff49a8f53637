"""What of a notebook an answer needs: the statements that its names come from, in the order in which cells ran.

In the notebook every cell has run before `check`; to run them all would take too long, and one that is broken or trains
a model must not cost the point. So the statements are read from the check backwards, and one is taken where it binds a
name that is needed after it, or edits what the name stands for (`table["phi"] = phi`); then the names that it reads are
needed before it. Which names a statement reads and binds its compiled code says. What a function reads is needed when
it is called, so wherever its name is. A call that might edit something (`torch.set_default_dtype(...)`) is taken if
nothing else has to run for it; `from x import *` and `exec` always are, because nobody can tell what they bind.

The order is that of the execution counts (`"run"`), or of the page (`"page"`), up to the check that shows ✓, else the
last one; what stands after it comes first. A stub counts only where there is nothing else. `"all"` takes everything.
"""

import __future__

import ast
import builtins
import dis
import itertools
import re
import types
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from smalearn.course.grading.ipython import plain

__all__ = ["ORDERS", "Notebook", "Statement"]

ORDERS = ("run", "page", "all")
FILE = re.compile(r"[\w./-]*\w\.[A-Za-z]\w{0,5}")  # a string like this is a file's name, and a name like others
COMMANDS = {"check", "hint", "solution", "case", "display"}
DYNAMIC = {"exec", "globals", "locals"}
KNOWN = frozenset(dir(builtins)) | {"get_ipython", "In"}
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
CHEAP = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
BLOCKS = ast.If | ast.For | ast.AsyncFor | ast.While | ast.Try | ast.With | ast.AsyncWith | ast.Match


@dataclass(frozen=True, eq=False)
class Statement:
    """Statement of a cell, compiled, and what it has to do with names of the notebook."""

    node: ast.stmt
    code: types.CodeType
    cell: int  # the place of its cell in the notebook
    shown: bool  # whether its value is the cell's output
    reads: frozenset[str]  # names that it reads when it runs
    later: frozenset[str]  # names that the functions in it read when they are called
    sets: frozenset[str]  # names that these bind, as `global`, or whose objects they edit
    binds: frozenset[str]  # names that it binds, whatever they stood for
    edits: frozenset[str]  # names that it may bind, or whose objects it edits
    hands: frozenset[str]  # names that it hands to a function which may edit them
    anything: bool  # whether it may bind any name
    checks: frozenset[str]  # ids of the exercises whose check it calls

    @property
    def cheap(self) -> bool:
        """Whether it does no more than to define something."""
        return isinstance(self.node, CHEAP) or not any(isinstance(inner, ast.Call) for inner in ast.walk(self.node))

    @property
    def stub(self) -> bool:
        """Whether it is a function that only raises NotImplementedError."""
        if not isinstance(self.node, ast.FunctionDef) or not isinstance(self.node.body[-1], ast.Raise):
            return False
        returns = any(isinstance(inner, ast.Return) for inner in ast.walk(self.node))
        return not returns and "NotImplementedError" in ast.unparse(self.node.body[-1])


class Notebook:
    """Code cells of a notebook, read as statements.

    Args:
        cells: each with `source`, `count` of its execution or None, `id` of the exercise whose tag it has or None,
            `setup`, whether it has that tag, and `right`, the ids of the exercises of which it shows ✓.
    """

    def __init__(self, cells: Sequence[Mapping]):
        self.cells = cells
        self.statements = {}  # place of a cell -> its statements
        self.errors = {}  # place of a cell -> why it cannot be read
        futures = any(re.search(r"(?m)^from __future__ import .*annotations", cell["source"]) for cell in cells)
        self.flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | (__future__.annotations.compiler_flag if futures else 0)

    def read(self, place: int) -> str:
        """Read a cell; return its source as Python."""
        source = plain(self.cells[place]["source"])
        body = ast.parse(source).body
        self.statements[place] = [self._statement(node, place, node is body[-1]) for node in body]
        return source

    def _statement(self, node: ast.stmt, place: int, last: bool) -> Statement:
        """Compile a statement and collect its names."""
        shown = last and isinstance(node, ast.Expr)
        tree = ast.Expression(node.value) if shown else ast.Module([node], [])
        code = compile(tree, f"<cell {place}>", "eval" if shown else "exec", self.flags, dont_inherit=True)
        names = defaultdict(set)
        for kind, name in _names(code, "now"):
            names[kind].add(name)
        edited, edited_later, handed = _edited(node)
        files = {inner.value.rpartition("/")[2] for inner in ast.walk(node) if _is_file(inner)}
        binds, edits = names["bound now"], edited | files
        if isinstance(node, BLOCKS):
            binds, edits = set(), edits | binds
        if shown:
            binds, edits = binds | {"_", f"_{self.cells[place]['count']}"}, edits | {"__", "___", "Out"}
        star = isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
        return Statement(
            node=node,
            code=code,
            cell=place,
            shown=shown,
            reads=frozenset(names["read now"] | files),
            later=frozenset(names["read later"]),
            sets=frozenset(names["bound later"] | (edited_later & names["read later"])),
            binds=frozenset(binds),
            edits=frozenset(edits),
            hands=frozenset(handed),
            anything=star or bool(DYNAMIC & names["read now"]),
            checks=frozenset(_checks(node)),
        )

    def setup(self) -> list[Statement]:
        """The statements of the cells tagged `setup`, and what they need of others."""
        statements = self._in_order("page")
        own = [one for one in statements if self.cells[one.cell]["setup"]]
        before = statements[: statements.index(own[-1]) + 1] if own else []
        return self._slice(before, set(own), {name for one in own for name in one.binds}, frozenset())

    def plan(self, id: str, name: str, order: str, given: Collection[str] = ()) -> list[Statement]:
        """List what is to run for an exercise: its own cells whole, and what they need of others but `given` names."""
        statements, wanted = self._in_order(order), {name}
        check = self._check(id, statements)
        if check:
            wanted |= check.reads
            end = statements.index(check) + 1
            statements = statements[end:] + statements[:end]
        stubs = [one for one in statements if name in one.binds and one.stub]
        others = [one for one in self._binders.get(name, ()) if not (one.stub or one.checks or _imports(one))]
        if others:
            statements = [one for one in statements if one not in stubs]
        own = {one for one in statements if self.cells[one.cell]["id"] == id or one is check}
        if order != "all":
            return self._slice(statements, own, wanted, frozenset(given))
        ran = any(cell["count"] is not None for cell in self.cells)
        own |= {one for one in statements if not ran or self.cells[one.cell]["count"] is not None}
        return [one for one in statements if one in own and not one.binds & set(given)]

    def _in_order(self, order: str) -> list[Statement]:
        counts = [cell["count"] if order != "page" else 0 for cell in self.cells]
        filled = itertools.accumulate(counts, lambda before, count: before if count is None else count, initial=-1)
        places = sorted(range(len(self.cells)), key=dict(enumerate(itertools.islice(filled, 1, None))).get)
        return [statement for place in places for statement in self.statements.get(place, [])]

    def _check(self, id: str, statements: Sequence[Statement]) -> Statement | None:
        """Find the check that counts: that which shows ✓, else one in a cell of the exercise, else the last one."""
        found, rank = None, (False, False)
        for one in statements:
            cell = self.cells[one.cell]
            new = id in cell["right"], cell["id"] == id
            if (id in one.checks or (new[0] and one is self.statements[one.cell][-1])) and new >= rank:
                found, rank = one, new
        return found

    @cached_property
    def _binders(self) -> dict[str, list[Statement]]:
        """Name -> the statements that may bind it."""
        found = defaultdict(list)
        for one in itertools.chain.from_iterable(self.statements.values()):
            for name in one.binds | one.edits:
                found[name].append(one)
        return found

    @cached_property
    def _functions(self) -> set[str]:
        return {name for name, binders in self._binders.items() if any(one.later for one in binders)}

    @cached_property
    def _modules(self) -> set[str]:
        return {name for name, binders in self._binders.items() if any(map(_imports, binders))}

    def _reach(self, names: Iterable[str]) -> set[str]:
        """Names, and those that the functions which they stand for read when they are called."""
        found, todo = set(), set(names)
        while todo:
            found |= todo
            binders = [one for name in todo for one in self._binders.get(name, ()) if name in one.binds]
            todo = {name for one in binders for name in one.later | (one.reads & self._functions)} - found
        return found

    def _slice(
        self, statements: Sequence[Statement], own: set[Statement], wanted: set[str], given: frozenset[str]
    ) -> list[Statement]:
        """Take the statements that give names the values which they have after the last one, and all of `own`."""
        given |= KNOWN - self._binders.keys()
        live = self._reach(wanted) - given
        taken, ever = [], set(live)
        for _ in range(2):  # in the second what is bound only after it is read, as in a kernel that was restarted
            for one in reversed(statements):
                reads = self._reach(one.reads) - given
                sets = set().union(*(other.sets for name in reads for other in self._binders.get(name, ())))
                edits = one.edits | (sets - self._modules)
                new = one not in taken
                counts = (one.anything and new) or live & one.binds or (edits & live) - self._modules
                if not counts and live & (edits | one.hands):
                    others = [set(self._binders.get(name, ())) for name in reads - ever]
                    counts = all(binders and all(other.cheap for other in binders - {one}) for binders in others)
                if counts or (one in own and new):
                    taken.append(one)
                if counts:
                    live = (live - one.binds) | reads
                    ever |= reads
            live -= set().union(*(one.binds | one.edits for one in taken))
        return taken[::-1]


def _imports(statement: Statement) -> bool:
    return isinstance(statement.node, ast.Import | ast.ImportFrom)


def _names(code: types.CodeType, when: str) -> Iterator[tuple[str, str]]:
    """Yield the global names in code, each with what is done to it, and when: at once, or as a function is called."""
    for instruction in dis.get_instructions(code):
        action, _, kind = instruction.opname.partition("_")
        if action == "LOAD" and kind in ("NAME", "GLOBAL", "FROM_DICT_OR_GLOBALS"):
            yield f"read {when}", instruction.argval
        elif action == "STORE" and (kind == "GLOBAL" or (kind == "NAME" and code.co_name == "<module>")):
            yield f"bound {when}", instruction.argval
        elif instruction.opname in ("IMPORT_NAME", "IMPORT_FROM"):  # of a file, where `sys.path` says
            yield from ((f"read {when}", name) for name in ("sys", *(f"{x}.py" for x in instruction.argval.split("."))))
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            at_once = not inner.co_flags & 2 or (inner.co_name.startswith("<") and inner.co_name != "<lambda>")
            yield from _names(inner, when if at_once else "later")


def _edited(node: ast.stmt) -> tuple[set[str], set[str], set[str]]:
    """Names whose objects a statement edits by `x.y = …`, `x[i] = …` or `x.f()`, at once or in a function; hands on."""
    now, later, handed = set(), set(), set()
    todo = [(node, now)]
    while todo:
        inner, edited = todo.pop()
        body = getattr(inner, "body", ()) if isinstance(inner, FUNCTIONS) else ()
        body = body if isinstance(body, list) else [body]
        todo += [(child, later if child in body else edited) for child in ast.iter_child_nodes(inner)]
        if isinstance(inner, ast.Attribute | ast.Subscript) and not isinstance(inner.ctx, ast.Load):
            edited.add(_root(inner))
        elif isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Call):
            call, name = inner.value, getattr(inner.value.func, "id", "")
            if isinstance(call.func, ast.Attribute):
                edited.add(_root(call.func))
            if edited is now and (name in ("setattr", "delattr") or name not in KNOWN | COMMANDS):
                handed |= {_root(argument) for argument in [*call.args, *(one.value for one in call.keywords)]}
    return now - {""}, later, handed - {""}


def _root(node: ast.AST) -> str:
    """The name that an expression such as `x.y[i].z` begins with; empty where it begins with none."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_file(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(FILE.fullmatch(node.value))


def _checks(node: ast.stmt) -> Iterator[str]:
    """Yield the ids of exercises for which a statement calls `check`."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and "check" in (getattr(inner.func, "id", ""), getattr(inner.func, "attr", "")):
            arguments = [*inner.args[:1], *(keyword.value for keyword in inner.keywords if keyword.arg == "exercise")]
            yield from (one.value for one in arguments if isinstance(one, ast.Constant) and isinstance(one.value, str))
