import pytest
import torch

from smalearn.data import ngram_features, recorded, recorded_cpus, ten_words, trained, zen_of_python


def test_zen_is_the_real_text():
    assert len(zen_of_python().split()) == 144
    assert zen_of_python().count("is better than") == 7
    assert zen_of_python().startswith("The Zen of Python, by Tim Peters\n\nBeautiful")


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_dot_products_count_matching_words(order):
    tokens = ["a", "b", "a", "b", "c", "a", "b", "a", "b", "a"]
    X = ngram_features(tokens, order)
    assert X.shape == (len(tokens), order * 3)
    for t in range(len(tokens)):
        for s in range(len(tokens)):
            matches = sum(t >= i and s >= i and tokens[t - i] == tokens[s - i] for i in range(order))
            assert X[t] @ X[s] == matches


def test_edges():
    assert ngram_features([], 2).shape == (0, 2)
    assert torch.equal(ngram_features(["a"], 3), torch.tensor([[1.0, 0, 0]]))
    with pytest.raises(ValueError, match="ngram_features: order "):
        ngram_features(["a"], 0)


def test_recorded_results_say_how_they_were_made():
    assert recorded_cpus("masks") == recorded_cpus("ssd") != recorded_cpus("recall") == []
    record = recorded("masks", recorded_cpus("masks")[0])
    assert record["command"] == "smalearn bench masks"
    assert record["machine"]["date"]
    with pytest.raises(ValueError, match="trained: name must be shakespeare, got 'hamlet'"):
        trained("hamlet")
    with pytest.raises(ValueError, match=r"recorded: name must be one of .*linear_attention, masks.*, got 'mask'"):
        recorded("mask")
    with pytest.raises(ValueError, match=r"recorded: cpu must be one of .*amd-epyc-avx512.*, got 'abacus'"):
        recorded("masks", "abacus")


def test_the_ten_words_hold_two_sentences_that_repeat():
    words, codes = ten_words()
    assert " ".join(words) == "simple is better than complex. complex is better than complicated."
    assert codes.shape == (10, 7)
    assert torch.equal(codes @ codes.mT, torch.tensor([[float(a == b) for a in words] for b in words]))
