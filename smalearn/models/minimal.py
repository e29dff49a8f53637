"""Your model: a language model in one file, whose mixer over time is a function that you wrote.

A mixer takes Q, K (batch, heads, T, N) and V (batch, heads, T, P) and returns Y like V; Y_t knows tokens up to t. If it
has keyword parameters `log_a` (at most 0) or `beta` (0 to 1), they are projected from the tokens, (batch, heads, T).
A step does the same for one token and carries a state: (q, k, v, state) -> y, state, without the axis of time; its
first state is None. A model with a step writes from its state; one without keeps all it was given, and mixes it anew.
"""

import inspect
import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import einsum, nn

WIDTH = 4  # tokens that the short convolution sees


def gates_of(mixer: Callable) -> list[str]:
    """Read from a mixer's parameters which gates it wants to have projected: "log_a", "beta", both or none."""
    return [name for name in ("log_a", "beta") if name in inspect.signature(mixer).parameters]


def keeping_all(mixer: Callable) -> Callable:
    """Make the step of a mixer that has none: it keeps all tokens, and mixes all of them for each new one."""

    def step(q, k, v, state, **gates):
        now = [x[:, :, None] for x in (q, k, v, *gates.values())]  # a token has a time axis of 1
        state = [torch.cat(pair, 2) for pair in zip(state, now, strict=True)] if state else now
        Q, K, V, *others = state
        Y = mixer(Q, K, V, **dict(zip(gates, others, strict=True)))
        return Y[:, :, -1], state

    return step


class Block(nn.Module):
    """X + out(mixer(Q, K, V)), then X + MLP(X). It begins as the identity.

    Args:
        mixer, step: over time, all tokens at once; and for one token, or None.
        D, heads: features of a token, of which each head has N = D / heads.
    """

    def __init__(self, mixer: Callable, step: Callable | None, D: int, heads: int):
        super().__init__()
        self.mixer = mixer
        self.step_function = step or keeping_all(mixer)
        self.keeps_all = step is None
        self.heads = heads
        self.gate_names = gates_of(mixer)

        self.norm1 = nn.RMSNorm(D)
        self.taps = nn.Parameter(torch.cat([torch.zeros(WIDTH - 1, D), torch.ones(1, D)]))  # at first each token alone
        self.qkv = nn.Linear(D, 3 * D, bias=False)  # (batch, T, D) -> Q, K, V of all heads
        self.gates = nn.Linear(D, 2 * heads)  # -> log_a and beta of each head
        self.norm_y = nn.RMSNorm(D // heads)  # of each head's Y
        self.out = nn.Linear(D, D, bias=False)  # all heads -> (batch, T, D)
        self.norm2 = nn.RMSNorm(D)
        self.up = nn.Linear(D, 3 * D, bias=False)
        self.down = nn.Linear(3 * D, D, bias=False)

        half_lives = 4 * 2 ** torch.linspace(0, 6, heads)  # a state halves in 4 to 256 tokens, each head otherwise
        log_a_bias = torch.expm1(math.log(2) / half_lives).log()  # -softplus of it is -log(2) / half life
        with torch.no_grad():
            self.gates.bias[:heads] = log_a_bias
            self.gates.bias[heads:] = 0
            self.out.weight.zero_()
            self.down.weight.zero_()

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """All tokens at once: (batch, T, D) -> (batch, T, D)."""
        seen = F.pad(self.norm1(X), (0, 0, WIDTH - 1, 0))  # (batch, WIDTH - 1 + T, D), nothing before the first
        Q, K, V, gates = self.operands(seen, X.shape[1])
        Y = self.mixer(Q, K, V, **gates)  # (batch, heads, T, N)
        return self.add(X, Y)

    def step(self, X: torch.Tensor, memory: tuple | None) -> tuple[torch.Tensor, tuple]:
        """One token (batch, 1, D), and what is kept of those before it: the last inputs, and a state."""
        x = self.norm1(X)
        last, state = memory or (x.new_zeros(len(x), WIDTH - 1, x.shape[2]), None)
        seen = torch.cat([last, x], 1)  # (batch, WIDTH, D)
        Q, K, V, gates = self.operands(seen, 1)
        q, k, v = Q[:, :, 0], K[:, :, 0], V[:, :, 0]  # (batch, heads, N)
        gates = {name: gate[:, :, 0] for name, gate in gates.items()}
        y, state = self.step_function(q, k, v, state, **gates)
        return self.add(X, y[:, :, None]), (seen[:, 1:].clone(), state)

    def operands(self, seen: torch.Tensor, T: int) -> tuple:
        """Q, K, V (batch, heads, T, N) and gates (batch, heads, T) of the last T of the tokens seen."""
        x = sum(seen[:, k : k + T] * tap for k, tap in enumerate(self.taps))  # a short causal convolution
        Q, K, V = rearrange(self.qkv(x), "b t (three h n) -> three b h t n", three=3, h=self.heads)
        log_a, beta = rearrange(self.gates(x), "b t (two h) -> two b h t", two=2)
        gates = {"log_a": -F.softplus(log_a), "beta": beta.sigmoid()}
        return Q, K, V, {name: gates[name] for name in self.gate_names}

    def add(self, X: torch.Tensor, Y: torch.Tensor) -> torch.Tensor:
        """Both residual connections: what was mixed over time, then each token by itself."""
        Y = rearrange(self.norm_y(Y), "b h t n -> b t (h n)")
        X = X + self.out(Y)
        hidden = F.relu(self.up(self.norm2(X))).square()
        return X + self.down(hidden)


class TinyLM(nn.Module):
    """Tokens (batch, T) -> scores of the next ones (batch, T, vocabulary).

    Args:
        mixer, step: over time, all tokens at once; and for one token, or None. Pairs of them in a list: one a block.
        vocabulary: how many tokens there are.
        D, heads, blocks: features of a token, heads of each block, blocks.
    """

    def __init__(self, mixer: Callable | list, vocabulary: int, step: Callable | None = None, D=96, heads=4, blocks=2):
        super().__init__()
        pairs = mixer if isinstance(mixer, list) else [(mixer, step)] * blocks
        self.embed = nn.Embedding(vocabulary, D)  # (batch, T) -> (batch, T, D)
        self.blocks = nn.ModuleList(Block(*pair, D, heads) for pair in pairs)
        self.norm = nn.RMSNorm(D)
        self.head = nn.Parameter(torch.zeros(vocabulary, D))  # at first all tokens are as likely

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores after each of the tokens."""
        X = self.embed(tokens)
        for block in self.blocks:
            X = block(X)
        return einsum("btd,vd->btv", self.norm(X), self.head)

    def step(self, tokens: torch.Tensor, memory: list | None = None) -> tuple[torch.Tensor, list]:
        """Scores (batch, vocabulary) after one more token each (batch,), and what is kept."""
        memory = memory or [None] * len(self.blocks)
        X, kept = self.embed(tokens)[:, None], []
        for block, before in zip(self.blocks, memory, strict=True):
            X, after = block.step(X, before)
            kept.append(after)
        return einsum("btd,vd->bv", self.norm(X), self.head), kept

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy, in nats, of tokens (batch, T + 1), each predicted from those before it."""
        return F.cross_entropy(rearrange(self(tokens[:, :-1]), "b t v -> b v t"), tokens[:, 1:])


@torch.inference_mode()
def write(model: TinyLM, prompt: torch.Tensor, length: int, temperature=0.6, seed=0) -> Iterator[int]:
    """Read a prompt (T,), T ≥ 1, then draw one token after the other."""
    if not len(prompt):
        raise ValueError("write: the prompt must have at least one token, got none")
    generator = torch.Generator().manual_seed(seed)
    memory = None
    for token in prompt:
        scores, memory = model.step(token[None], memory)
    for _ in range(length):
        token = torch.multinomial((scores / temperature).softmax(-1), 1, generator=generator)[:, 0]
        yield token.item()
        scores, memory = model.step(token, memory)
