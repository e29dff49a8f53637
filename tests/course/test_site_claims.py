"""The table of claims: what it knows of each, and what it says of it."""

from pathlib import Path

import pytest

from smalearn.course import cli, site

ROOT = Path(__file__).parents[2]
FIELDS = {"id": "000:x", "source": "Eq. 1", "statement": "x = x", "check": "that x is y", "chapter": "01"}
FIELDS |= {"where": "begin", "section": "1 · Begin", "verdict": "", "erratum": "", "nature": "", "residual": None}
FIELDS |= {"tests": ("t",), "functions": ("f",)}


def test_claims_know_their_chapter_their_tests_and_their_error():
    found = {claim.id: claim for claim in site.claims(ROOT)}
    one = found["000:softmax-attention"]
    assert one.chapter == "01"
    assert one.functions == ("smalearn.kernel_attention.attention.softmax_weights",)
    assert one.tests == ("test_softmax_is_exp_then_normalisation_over_the_sources",)
    assert (one.where, one.section) == ("softmax-loop", "1 · Attention in three steps")
    assert one.residual < 1e-12
    assert one.erratum.startswith("Incomplete")
    assert all(claim.tests for claim in found.values())


def test_claims_on_the_command_line(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert cli.main(["claims", "EQ15B-cost"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("000:eq15b-cost")
    assert out.count("\n  chapter ") == 1
    assert cli.main(["claims", "phlogiston"]) == 0
    assert capsys.readouterr().out == "no claim has 'phlogiston' in it\n"
    assert cli.main(["claims"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("290 claims of 10 sources")
    assert len(out.splitlines()) < 15
    assert "34 error" in out
    assert "2 opposite in small" in out


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tests": (), "functions": ()}, "\n  chapter 01, 1 · Begin; not yet tested"),
        ({}, "\n  chapter 01, 1 · Begin; tested"),
        ({"chapter": "A"}, "\n  appendix A, 1 · Begin; tested"),
        ({"residual": 0.0}, "\n  chapter 01, 1 · Begin; exact"),
        ({"residual": 2.1e-15}, "\n  chapter 01, 1 · Begin; error 2e-15"),
        ({"verdict": "opposite in small"}, "chapter 01, 1 · Begin; opposite in small\n  tested: that x is y"),
        ({"where": ""}, "not yet in chapter 01; tested"),
        ({"erratum": "It is y.", "nature": "error"}, "\n  correction: It is y."),
        ({"erratum": "It was y.", "nature": "draft"}, "\n  in the draft only: It was y."),
    ],
)
def test_a_claim_says_what_came_of_it(fields, said):
    assert said in site.table([site.Claim(**FIELDS | fields)], "x")


def test_claims_need_the_course(tmp_path):
    with pytest.raises(ValueError, match=r"claims: there is no file ch\*/claims\.toml"):
        site.claims(tmp_path)
