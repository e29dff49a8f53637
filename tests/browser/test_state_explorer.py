"""The state explorer on a bare page: no kernel, no JupyterLab."""

import torch
from views import change, drawn, headline, heard, words

from smalearn.course.widgets import StateExplorer
from smalearn.linear_attention import delta_rule_recurrent, linear_attention_parallel, linear_attention_recurrent

FORMULAS = """(cases) => cases.map(({ K, V, gates, q, beta }) => K.map((_, s) => {
  const H = script.stateAfter(s + 1, { K, V, gates, beta }), row = script.attentionRow(s + 1, { K, gates, beta }, q);
  return { H, row, y: script.readOut(H, q), sum: script.attend(row, V) };
}))"""


def random_cases(count):
    """Keys, values, gates, some of them 0 and 1, and a query."""
    seed = torch.Generator().manual_seed(0)
    for _ in range(count):
        T, N, P = (int(torch.randint(1, limit + 1, (), generator=seed)) for limit in (12, 8, 8))
        K, V, q = (torch.randn(shape, generator=seed, dtype=torch.float64) for shape in ((T, N), (T, P), (N,)))
        gates = (1.4 * torch.rand(T, generator=seed, dtype=torch.float64) - 0.2).clamp(0, 1)
        yield {"K": K, "V": V, "gates": gates, "q": q}


def close(found, expected):
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), expected, rtol=1e-12, atol=1e-13)


def test_script_computes_the_two_forms_of_python(mount):
    cases, page = list(random_cases(60)), mount(StateExplorer())
    assert any((case["gates"] == 0).any() for case in cases)
    found = page.evaluate(FORMULAS, [{name: x.tolist() for name, x in case.items()} for case in cases])
    for case, steps in zip(cases, found, strict=True):
        K, V, log_a = case["K"], case["V"], case["gates"].log()
        Q = case["q"].expand_as(K)
        Y, _ = linear_attention_recurrent(Q, K, V, log_a)
        M = linear_attention_parallel(Q, K, torch.eye(len(K), dtype=K.dtype), log_a)
        close([step["y"] for step in steps], Y)
        close([step["row"] for step in steps], M)
        close([step["sum"] for step in steps], linear_attention_parallel(Q, K, V, log_a))
        for t, step in enumerate(steps, 1):
            close(step["H"], linear_attention_recurrent(Q[:t], K[:t], V[:t], log_a[:t])[1])


def test_script_corrects_as_python_does(mount):
    cases, page = list(random_cases(30)), mount(StateExplorer(beta=1))
    plain = [{name: x.tolist() for name, x in case.items()} | {"beta": n / 15} for n, case in enumerate(cases)]
    for n, (case, steps) in enumerate(zip(cases, page.evaluate(FORMULAS, plain), strict=True)):
        K, V, log_a = case["K"], case["V"], case["gates"].log()
        Q, beta, eye = case["q"].expand_as(K), torch.full_like(log_a, n / 15), torch.eye(len(K), dtype=K.dtype)
        Y, H = delta_rule_recurrent(Q, K, V, beta, log_a)
        size = Y.abs().max().item()  # keys are of any norm: what is corrected too strongly grows
        for found, expected in [
            ([step["y"] for step in steps], Y),
            ([step["row"] for step in steps], delta_rule_recurrent(Q, K, eye, beta, log_a)[0]),
            ([step["sum"] for step in steps], Y),
            (steps[-1]["H"], H),
        ]:
            torch.testing.assert_close(
                torch.tensor(found, dtype=torch.float64), expected, rtol=1e-9, atol=1e-12 * (1 + size)
            )


def test_what_is_written_under_a_key_twice(mount):
    page = mount(StateExplorer("Ann:tea Ben:milk Ann:cocoa", query="Ann", beta=1))
    assert headline(page) == "“Ann” reads “cocoa” 1"
    page.get_by_role("slider", name="β, how much is written").fill("10")
    assert page.evaluate("saved.beta") == 0.5
    assert headline(drawn(page)) == "“Ann” reads “cocoa” 0.5, “tea” 0.25"
    page.get_by_role("checkbox").uncheck()
    assert page.evaluate("saved.beta") is None
    assert headline(drawn(page)) == "“Ann” reads “tea” 1, “cocoa” 1"
    assert page.get_by_role("combobox", name="q, query").locator("option").all_inner_texts() == ["Ann", "Ben"]


def test_nothing_read_is_a_state_of_zeros(mount):
    page = mount(StateExplorer("a b", keys=[[1], [2]], values=[[3, 4], [5, 6]], time=0))
    none = "script.stateAfter(0, { K: [[1], [2]], V: [[3, 4], [5, 6]], gates: [1, 1] })"
    assert page.evaluate(none) == [[0], [0]]
    assert words(page).startswith("After 0 of 2 words, the query “a” reads from the state: nothing.")


def test_description_says_that_both_forms_agree(mount):
    page = mount(StateExplorer(gates=0.5, query="than", time=9))
    assert words(page) == (
        "After 9 of 10 words, the query “than” reads from the state: “complex.” 0.03, “complicated.” 1. "
        "Attention weighs: word 3 “than” 0.03, word 8 “than” 1. The sum of its weighted values is the same. "
        "The gate of word 5, “complex”, is 0.5."
    )
    assert headline(page) == "“than” reads “complicated.” 1, “complex.” 0.03"
    change(page, query="is")
    heard(page, "“is”")
    assert "“better”\u00a00.26" in page.locator("[aria-live]").inner_text()


def test_arrow_keys_choose_a_word_and_change_its_gate(mount):
    page = mount(StateExplorer(gates=0.5))
    page.locator("canvas").first.focus()
    for key, places in [("ArrowLeft", []), ("ArrowUp", [(4, 0.55)]), ("ArrowDown", [(4, 0.5)]), ("ArrowRight", [])]:
        page.keyboard.press(key)
        gates = [0.5] * 10
        for place, gate in places:
            gates[place] = gate
        assert page.evaluate("model.get('gates')") == gates
    for _ in range(12):
        page.keyboard.press("ArrowDown")
    assert page.evaluate("saved.gates") == [*[0.5] * 5, 0, *[0.5] * 4]
    page.wait_for_function("document.querySelector('[aria-live]').textContent.endsWith('word 5, “complex”, is 0.')")


def test_gates_are_dragged_and_words_clicked(mount):
    page = mount(StateExplorer())
    canvas = drawn(page).locator("canvas").first
    box = canvas.bounding_box()
    width = (box["width"] - 8) / 10

    def at(word, y):
        return box["x"] + 4 + (word + 0.5) * width, box["y"] + y

    page.mouse.move(*at(3, 40))
    page.mouse.down()
    gate = page.evaluate("saved.gates[3]")
    assert 0.6 < gate < 0.8
    page.mouse.move(*at(4, 150))  # below the gates: 0, and the words are not clicked
    page.mouse.up()
    assert page.evaluate("[saved.gates, saved.time]") == [[1, 1, 1, gate, 0, 1, 1, 1, 1, 1], 10]
    canvas.click(position={"x": at(6, 0)[0] - box["x"], "y": 130})
    assert page.evaluate("[saved.gates, saved.time]") == [[1, 1, 1, gate, 0, 1, 1, 1, 1, 1], 7]


def test_sliders_and_list_tell_python(mount):
    page = mount(StateExplorer(gates=[0.25, *[0.75] * 9]))
    decay = page.get_by_role("slider", name="a, for all words")
    assert decay.get_attribute("aria-valuetext") == "mixed"
    decay.focus()
    page.keyboard.press("Home")
    assert page.evaluate("saved.gates") == [0] * 10
    page.keyboard.press("ArrowRight")
    assert page.evaluate("saved.gates") == [0.05] * 10
    assert drawn(page).evaluate("document.activeElement.getAttribute('aria-valuetext')") == "0.05"
    page.get_by_role("slider", name="t, words read").fill("4")
    page.get_by_role("combobox", name="q, query").select_option("better")
    assert page.evaluate("[saved.time, saved.query]") == [4, "better"]
    change(page, query="than", time=6)
    assert page.get_by_role("combobox", name="q, query").input_value() == "than"
    assert page.get_by_role("slider", name="t, words read").get_attribute("aria-valuetext") == "6 of 10"
