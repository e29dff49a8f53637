"""Gradients of answers whose values are right: what is wrong with them, or why there are none."""

import torch

from smalearn.course.exercises import evaluate, registry
from smalearn.course.exercises.report import render

EXERCISES = registry()


def test_a_gradient_that_is_not_there_is_told():
    def without(log_a):
        return torch.from_numpy(EXERCISES["6.1"].solution(torch.from_numpy(log_a.numpy())).numpy())

    result = evaluate(EXERCISES["6.1"], without)
    assert result.problem.sentence.startswith("The values are right, the gradient by log_a is not: NumPy knows no grad")
    assert "line 2 of without: " in result.problem.lines[-1]


def in_place(Q, K, V, log_a, chunk_len):
    """Token by token, in a state that is overwritten."""
    H, rows = V.new_zeros(V.shape[1], K.shape[1]), []
    for q, k, v, a in zip(Q, K, V, log_a.exp(), strict=True):
        H *= a
        H += torch.outer(v, k)
        rows.append(H @ q)
    return torch.stack(rows)


def test_what_a_model_cannot_train_is_told():
    result = evaluate(EXERCISES["3.5"], in_place)
    assert (result.outcome, result.case) == ("failed", 2)
    assert "the gradient by Q and K and V is not: you change in place (`+=`, " in result.problem.sentence
    assert not any("Error" in line or "gradient" in line for line in result.problem.lines)
    assert result.problem.sentence in " ".join(render(result).split())


def test_an_answer_in_another_dtype_has_no_wrong_gradient():
    def double(L, R, x):
        return EXERCISES["10.4"].solution(L.double(), R.double(), x.double())

    sentence = evaluate(EXERCISES["10.4"], double).problem.sentence
    assert "gradient" not in sentence
    assert "your answer is in float64" in sentence


def test_tensors_of_two_dtypes_are_told_in_plain_words():
    def mixed(Q, K, V, beta, state):
        one = torch.eye(K.shape[-2], dtype=torch.float64)
        A = (beta[..., None] * (K @ K.mT)).tril(-1)
        U = torch.linalg.solve(one + A, beta[..., None] * (V - K @ state.mT))
        return (Q @ K.mT).tril() @ U + Q @ state.mT, state + U.mT @ K

    result = evaluate(EXERCISES["8.4"], mixed)
    assert result.problem.lines[-1].startswith("two tensors that meet differ in dtype")
