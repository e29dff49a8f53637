"""Formulas of docstrings as LaTeX: what is written as `Y = (L ∘ Q K^T) V` for a terminal is set for a page."""

import re

__all__ = ["latex"]

FUNCTIONS = "conv|diag|exp|l2norm|log|max|min|norm|rope|scores|sigmoid|softmax|softplus|tril|SiLU"
WORDS = "and|at|for|if|last|in|out|first|each|where"
SIGNS = {"²": "^2", "∘": r"\circ ", "·": r"\cdot ", "≤": r"\le ", "≥": r"\ge ", "−": "-", "Σ": r"\sum "}
SIGNS |= {"←": r"\leftarrow ", "∝": r"\propto ", "...": r"\cdots ", "…": r"\dots "}
RELATION = r"\s*(=|←|∝)\s+"
TOKEN = re.compile(
    r"\s+"
    r"|log_(?P<logarithm>[a-zα-ω])(?![a-z])"
    r"|(?P<function>" + FUNCTIONS + r")(?=[\s(\[_])"
    r"|(?P<word>" + WORDS + r")\b"
    r"|(?P<script>[_^])(?P<body>\((?P<inner>[^()]*)\)|\{(?P<braced>[^{}]*)\}|-?\w)(?P<more>\w*)"
    r"|√(?P<root>\w)"
    r"|(?P<name>d?[A-Za-zα-ωΑ-ΡΤ-Ω]'*)(?![a-z])"
    r"|(?P<number>\d+(\.\d+)?)"
    r"|(?P<sign>\.\.\.|[²∘·≤≥−←∝…Σ])"
    r"|(?P<other>[-+/|()\[\],.;:=<>'])"
)


def latex(block: str) -> str | None:
    r"""Translate a block of formulas, one a line, each with a remark behind three spaces or without one.

    Example:
        >>> latex("    Y = (L ∘ Q K^T) V")
        '\\begin{aligned}Y &= (L \\circ  Q K^{\\top }) V\\end{aligned}'
    """
    lines = [_line(line) for line in block.splitlines()]
    if None in lines:
        return None
    return r"\begin{aligned}" + r"\\{}".join(lines) + r"\end{aligned}"


def _line(line):
    """Translate a line: a formula with a relation in it, and what stands to the right of it."""
    first, *others = re.split(r"\s{3,}", re.sub(RELATION, r" \1 ", line.strip(), count=1))
    sides = [_formula(side) for side in re.split(RELATION, first, maxsplit=1)]  # left, the relation, right
    remarks = [_formula(other) or _remark(other) for other in others]
    if len(sides) != 3 or None in sides + remarks:
        return None
    return " &&".join(["{} &{} {}".format(*sides), *remarks])


def _remark(text):
    """Keep a remark as text, unless a formula is in it."""
    return rf"\text{{{text}}}" if re.fullmatch(r"[\w\s,.;:'()+-]*", text) and "_" not in text else None


def _formula(text):
    """Translate a formula; None where a character begins no token."""
    parts, place = [], 0
    while place < len(text):
        if (token := TOKEN.match(text, place)) is None:
            return None
        part, place = _part(token), token.end()
        if part is None:
            return None
        parts.append(part)
    return "".join(parts).strip()


def _part(token):
    """Translate one token."""
    if token["function"]:
        return rf"\operatorname{{{token['function']}}}"
    if token["word"]:
        return rf"\text{{ {token['word']} }}"
    if token["logarithm"]:
        return rf"\log {token['logarithm']}"
    if token["root"]:
        return rf"\sqrt{{{token['root']}}}"
    if token["script"]:
        return _script(token)
    return SIGNS.get(token["sign"]) or token["name"] or token["number"] or token["other"] or " "


def _script(token):
    """Translate an index or a power: T is the transpose, words stay upright."""
    inner = token["inner"] or token["braced"]
    if inner:
        return (body := _formula(inner)) and f"{token['script']}{{{body}}}" + token["more"]
    body = token["body"] + token["more"]
    if token["script"] == "^":
        return f"^{{{body.replace('T', chr(92) + 'top ')}}}" if len(body) < 3 else None
    nested = body.partition("_")[0]
    shown = rf"\text{{{nested}}}" if re.fullmatch(WORDS, nested) else nested
    return f"_{{{shown}}}" if nested == body else None
