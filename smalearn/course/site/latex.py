"""Formulas of docstrings as LaTeX: what is written as `Y = (L ∘ Q K^T) V` for a terminal is set for a page."""

import re

__all__ = ["inline", "latex"]

FUNCTIONS = "blkdiag|conv|cumsum|diag|exp|l2norm|log|max|min|norm|relu|rope|scores|sigmoid|softmax|softplus|sqrt|tril"
FUNCTIONS += "|SiLU"
GREEK = "alpha|beta|gamma|eta|theta|kappa|lambda|sigma|phi|psi"
WORDS = "and|at|for|if|last|in|out|first|each|where"
SIGNS = {"²": "^2", "∘": r"\circ ", "·": r"\cdot ", "≤": r"\le ", "≥": r"\ge ", "−": "-", "Σ": r"\sum "}
SIGNS |= {"←": r"\leftarrow ", "∝": r"\propto ", "...": r"\cdots ", "…": r"\dots ", "⊕": r"\oplus "}
RELATION = r"\s*(=|←|∝)\s+"
OPERATION = "[-+*/=<>∘·≤≥∝←]"
SIGN = r"[\^_=∘·√Σ≤≥]|\b(" + FUNCTIONS + r")\("  # no formula is without one
EDGES = (
    rf"((?:a (?!{OPERATION})|{OPERATION}+\s)*)(.*?)((?:\s{OPERATION}+(?=\s)|[\s.,;:])*)"  # of a run: not in a formula
)
PROSE = WORDS + r"|.*[A-Z]{3}.*|\(?[\dA-Z]{2,}:.*"  # words that begin and end a formula in a text
TOKEN = re.compile(
    r"\s+"
    r"|log_(?P<logarithm>[a-zα-ω])(?![a-z])"
    r"|(?P<greek>" + GREEK + r")(?![a-z])"
    r"|(?P<function>" + FUNCTIONS + r")(?=[\s(\[_])"
    r"|(?P<word>" + WORDS + r")\b"
    r"|(?P<script>[_^])(?P<body>\((?P<inner>[^()]*)\)|\{(?P<braced>[^{}]*)\}|-?\w)(?P<more>\w*)"
    r"|√(?P<root>\w)"
    r"|(?P<name>d?[A-Za-zα-ωΑ-ΡΤ-Ω]'*)(?![a-z])"
    r"|(?P<number>\d+(\.\d+)?)"
    r"|(?P<sign>\.\.\.|[²∘·≤≥−←∝…Σ⊕])"
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


def inline(text: str) -> list[tuple[str, str | None]]:
    r"""Split prose into parts, each with its LaTeX where it is a formula: neighbouring words of letters and signs.

    Example:
        >>> inline("here L ∘ C B^T.")
        [('here ', None), ('L ∘ C B^T', 'L \\circ  C B^{\\top }'), ('.', None)]
    """
    parts, run = [], ""
    for word in [*re.findall(r"\S+\s*", text), ""]:
        bare = word.rstrip().rstrip(".,;:")
        is_sign = bool(bare) and not re.fullmatch(PROSE, bare) and _formula(bare) is not None
        run += word * is_sign
        if not is_sign or (word.rstrip() != bare and run.count("(") <= run.count(")")):
            parts += [*_found(run), (word * (not is_sign), None)]
            run = ""
    return [(part, formula) for part, formula in parts if part]


def _found(run):
    """Take a formula out of words that could be one: what stands before it, the formula, what stands behind."""
    head, body, tail = re.fullmatch(EDGES, run, re.DOTALL).groups()
    if body.startswith("(") and body.count("(") > body.count(")"):
        head, body = head + "(", body[1:]
    if body.endswith(")") and body.count(")") > body.count("("):
        body, tail = body[:-1], ")" + tail
    is_whole = all(body.count(left) == body.count(right) for left, right in ("()", "[]"))
    signs = body.replace("<=", "≤").replace(">=", "≥").replace(" o ", " ∘ ")
    formula = _formula(signs) if is_whole and re.search(SIGN, signs) else None
    return [(head, None), (body, formula), (tail, None)] if formula else [(run, None)]


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
    if token["greek"]:
        return rf"\{token['greek']} "
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
