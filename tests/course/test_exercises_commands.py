"""The commands of a chapter: check, hint, case, solution; in a console, in IPython and in a kernel."""

import dataclasses
import importlib
import io
import re
import sys

import pytest
import torch
from demos import CAUSAL, PLAIN, causal_product, is_copy, unmasked

from smalearn.course.exercises import CheckFailed, check, commands, hint, registry, report, solution, verify

pytestmark = pytest.mark.usefixtures("fresh_kernel")


def mine(Q, K, V):
    return causal_product(Q, K, V)


def stub(Q, K, V):
    raise NotImplementedError


def test_check_returns_attempt_or_reference(capsys):
    assert check(CAUSAL, mine) is mine
    first, second = capsys.readouterr().out.splitlines()
    assert first == "✓ demo.1 causal attention: 4 cases passed (seed 0)"
    assert re.fullmatch(r"  yours 1 line, [\d.e-]+ ms; ours 1 line, [\d.e-]+ ms", second)
    returned = check(CAUSAL, unmasked, seed=2)
    assert "(seed 2)" in capsys.readouterr().out
    assert is_copy(returned)
    assert returned.__name__ == "causal_product"
    Q, K, V = CAUSAL.draw()[-1]
    assert torch.equal(returned(Q, K=K, V=V), causal_product(Q, K, V))
    assert check(CAUSAL, causal_product) is causal_product


@pytest.mark.parametrize("attempt", [stub, unmasked, None], ids=["stub", "wrong", "none"])
def test_check_twice_says_the_same_twice(attempt, capsys):
    attention = check(CAUSAL, attempt)
    first = capsys.readouterr().out
    for _ in range(2):
        attention = check(CAUSAL, attention)
        assert is_copy(attention)
        assert capsys.readouterr().out == first
    assert "✓" not in first


def test_a_handed_back_solution_is_ours_in_every_dress(capsys):
    attention = check(CAUSAL, stub)
    check(CAUSAL, torch.no_grad()(attention))
    assert "✓" not in capsys.readouterr().out
    other = dataclasses.replace(CAUSAL, id="demo.9", title="other")
    assert check(other, attention) is attention  # for another exercise it is an answer like any other
    assert "✓ demo.9" in capsys.readouterr().out


def test_another_attempt_after_a_handed_back_solution_counts(capsys):
    attention = check(CAUSAL, stub)
    assert check(CAUSAL, mine) is mine
    assert check(CAUSAL, attention) is mine
    assert capsys.readouterr().out.count("✓") == 2


def test_an_attempt_that_calls_itself_never_calls_ours(capsys):
    namespace = {}
    exec("def attention(Q, K, V):\n    return attention(Q, K, V)", namespace)
    for _ in range(2):
        namespace["attention"] = check(CAUSAL, namespace["attention"])
        assert "RecursionError" in capsys.readouterr().out


def test_another_seed_or_a_changed_exercise_is_judged_anew(capsys):
    attention = check(CAUSAL, unmasked)
    attention = check(CAUSAL, attention, seed=3)
    assert capsys.readouterr().out.count("4 cases passed (seed 3)") == 1
    changed = dataclasses.replace(CAUSAL, oracle=unmasked)
    assert check(changed, attention) is unmasked
    assert "✓ demo.1" in capsys.readouterr().out


def test_our_solution_without_an_attempt_is_not_started(monkeypatch, capsys):
    attention = check(CAUSAL, stub)
    commands._session.attempts.clear()
    capsys.readouterr()
    assert is_copy(check(CAUSAL, attention))
    said = (
        "○ demo.1: this is our solution, which an earlier check handed back; run the cell with your function\n  first\n"
    )
    assert said in capsys.readouterr().out
    assert commands._session.attempts == {}
    record = report.record(commands._judge(CAUSAL, attention, 0)[1])
    assert record == {"exercise": "demo.1", "outcome": "not started", "seed": 0, "cases": 4, "passed": 0}
    monkeypatch.setenv("SMALEARN_STRICT", "1")
    with pytest.raises(CheckFailed, match="this is our solution"):
        check(CAUSAL, attention)


def test_check_without_an_attempt_says_what_to_write():
    message = r'check: attempt is missing; write causal_product = check\("demo.1", causal_product\)$'
    with pytest.raises(ValueError, match=message):
        check(CAUSAL)


def test_strict_mode_raises_after_printing(monkeypatch, capsys):
    monkeypatch.setenv("SMALEARN_STRICT", "1")
    assert check(CAUSAL, causal_product) is causal_product
    with pytest.raises(CheckFailed, match=r"demo\.1 not started"):
        check(CAUSAL, stub)
    assert capsys.readouterr().out.endswith("○ demo.1 not started; later cells use the reference solution\n")
    monkeypatch.setenv("SMALEARN_STRICT", "0")
    assert is_copy(check(CAUSAL, stub))


def test_a_hint_comes_at_once_and_the_next_after_another_wrong_attempt(capsys):
    def shown():
        capsys.readouterr()
        assert hint(CAUSAL) is None
        return capsys.readouterr().out

    first, second = (f"Hint {number} of 2: {text}\n" for number, text in enumerate(CAUSAL.hints, 1))
    wait = "The next one comes after another attempt.\n"
    assert shown() == shown() == first + wait
    check(CAUSAL, stub)
    check(CAUSAL, causal_product)
    assert shown() == first + wait
    check(CAUSAL, unmasked)
    last = first + second + 'There are no more: solution("demo.1") shows one way to write it.\n'
    assert shown() == shown() == last
    check(CAUSAL, unmasked)
    assert shown() == last
    hint(PLAIN)
    assert capsys.readouterr().out.startswith("Hint 1 of 2")


def test_a_case_to_look_at(capsys):
    assert commands.case(CAUSAL) is None
    assert "There is no case of demo.1 to look at: you have not checked an attempt yet." in capsys.readouterr().out
    check(CAUSAL, unmasked)
    arguments, expected, got = commands.case(CAUSAL)
    assert torch.allclose(causal_product(**arguments), expected)  # the last digit depends on where they lie
    assert torch.allclose(unmasked(**arguments), got)
    arguments["Q"].zero_()
    assert commands.case(CAUSAL).arguments["Q"].any()
    check(CAUSAL, lambda Q, K, V: Q[99])
    assert commands.case(CAUSAL).got is None
    check(CAUSAL, causal_product)
    assert commands.case(CAUSAL) is None
    assert "your last attempt got no case wrong." in capsys.readouterr().out


def test_a_case_tells_strides(capsys):
    exercise = registry()["12.3"]
    check(exercise, lambda x: x + (x.stride(0) < x.stride(1)))
    capsys.readouterr()
    strides = commands.case(exercise).arguments["x"].stride()
    assert capsys.readouterr().out.endswith(f"strides {strides}\n")
    assert strides[0] == 1


def test_what_follows_a_tick(capsys):
    first, second = registry()["1.1"], registry()["1.2"]
    check(second, second.solution)
    assert "· in this chapter 1 of 6, next 1.1 What leaks" in " ".join(capsys.readouterr().out.split())
    check(first, lambda: first.solution())
    told = " ".join(capsys.readouterr().out.split())
    assert "in this chapter 2 of 6, next 1.3" in told
    assert first.insight in told
    check("7.c", lambda: 1000)
    assert " openers 1 of 3, next 7.a" in " ".join(capsys.readouterr().out.split())
    commands.follow("1.1", "1.2", "3.1")
    check(second, second.solution)
    assert "on this road 2 of 3, next 3.1" in " ".join(capsys.readouterr().out.split())


def test_solution_shows_its_source_and_its_insight(capsys):
    assert solution(CAUSAL) is None
    assert capsys.readouterr().out == (
        "Our solution:\n"
        'def causal_product(Q, K, V):\n    """Masked attention without softmax."""\n    return (Q @ K.mT).tril() @ V\n'
    )
    solution("1.1")
    assert registry()["1.1"].insight.endswith(capsys.readouterr().out.splitlines()[-1])


def test_solution_without_source(capsys):
    namespace = {}
    exec("def typed(Q, K, V):\n    return (Q @ K.mT).tril() @ V", namespace)
    namespace["typed"].__doc__ = causal_product.__doc__
    exercise = dataclasses.replace(CAUSAL, solution=namespace["typed"])
    solution(exercise)
    assert "The source of demo.1 cannot be read" in capsys.readouterr().out
    assert verify(exercise, seeds=[0]) == ["the solution's source cannot be read: write it in a file or a cell"]


def test_consoles_without_a_tick_survive(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="cp1252", newline="\n"))
    check(CAUSAL, causal_product)
    sys.stdout.flush()
    assert raw.getvalue().startswith(b"? demo.1 causal attention: 4 cases passed (seed 0)\n")


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """An IPython shell whose displays are collected."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    shell.display_pub = CapturingDisplayPublisher()
    shell.user_ns.update(CAUSAL=CAUSAL, check=check, hint=hint, solution=solution)
    yield shell
    InteractiveShell.clear_instance()


def displayed(shell, cell):
    shell.display_pub.outputs.clear()
    shell.run_cell(cell).raise_error()
    return [output["data"] for output in shell.display_pub.outputs]


def test_displays_inside_ipython(shell, capsys):
    (data,) = displayed(shell, "def attention(Q, K, V):\n    raise NotImplementedError\na = check(CAUSAL, attention)")
    assert data["text/plain"] == "○ demo.1 not started; later cells use the reference solution"
    assert data[report.MIME] == {"exercise": "demo.1", "outcome": "not started", "seed": 0, "cases": 4, "passed": 0}
    assert is_copy(shell.user_ns["a"])
    (data,) = displayed(shell, "def broken(Q, K, V):\n    n = len(Q)\n    return Q @ V[n]\na = check(CAUSAL, broken)")
    assert "    line 3 of broken: return Q @ V[n]\n    IndexError: index 1 is out of bounds" in data["text/plain"]
    assert data[report.MIME]["outcome"] == "error"
    (shown,) = displayed(shell, "hint(CAUSAL)")
    assert shown["text/plain"].startswith("Hint 1 of 2: Which scores may row t see?\nThe next one comes after")
    assert all(f"<p>{line}</p>" in shown["text/html"] for line in shown["text/plain"].splitlines())
    heading, data = displayed(shell, "solution(CAUSAL)")
    assert heading == {"text/plain": "Our solution:"}
    assert data["text/plain"].startswith("def causal_product(Q, K, V):")
    assert "highlight" in data["text/html"]
    assert capsys.readouterr().out == ""


KERNEL_CELLS = [
    "import sys, torch\nfrom smalearn.course.exercises import check, evaluate, registry\nfirst = registry()['0.1']",
    "def mean(V):\n    for row in V:\n        row.missing\n    return V\nmean = check('0.1', mean)",
    "def mean(V):\n    while True:\n        try:\n            V.sum()\n        except:\n            pass\n"
    "evaluate(first, mean, limit=0.2).outcome",
]


@pytest.mark.full
def test_inside_a_notebook_kernel():
    nbformat = importlib.import_module("nbformat.v4")
    nbclient = importlib.import_module("nbclient")
    notebook = nbformat.new_notebook(cells=[nbformat.new_code_cell(cell) for cell in KERNEL_CELLS])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    _, checked, stopped = (cell.outputs for cell in notebook.cells)
    assert [output.output_type for output in checked] == ["display_data"]
    text = checked[0].data["text/plain"]
    assert "    line 3 of mean: row.missing\n    AttributeError: 'Tensor' object has no" in text
    assert checked[0].data[report.MIME]["outcome"] == "error"
    assert stopped[-1].data["text/plain"] == "'timeout'"
