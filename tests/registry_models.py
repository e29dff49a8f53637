"""The family of mixers: how each is built, and its formulas as a loop over tokens, heads and pairs."""

import math

import torch
from torch.nn import functional

from smalearn.models import (
    RWKV7,
    GatedDeltaNet,
    GatedDeltaNet2,
    LinearAttention,
    LogLinearMamba2,
    Mamba1,
    Mamba2,
    Mamba3,
    MultiLevelAttention,
    ShortConvolution,
    SoftmaxAttention,
    WindowAttention,
)
from smalearn.testing import random_tensors


def convolve(conv, rows, t):
    """One output of a causal convolution: the sum over the last rows, zeros before the first."""
    length = conv.weight.shape[-1]
    past = (conv.weight[:, 0, k] * rows[t - length + 1 + k] for k in range(length) if t - length + 1 + k >= 0)
    return sum(past) + (0 if conv.bias is None else conv.bias)


def rms(u, weight):
    return weight * u / (u.square().mean() + 1e-5).sqrt()


def gated(block, y, z):
    """Through the gate and a norm for each group of channels to the output."""
    u = y * functional.silu(z)
    parts = [rms(*part) for part in zip(u.chunk(block.groups), block.norm.weight.chunk(block.groups), strict=True)]
    return block.out_proj.weight @ torch.cat(parts)


def mamba2_loop(block, x):
    rows = [block.in_proj.weight @ token for token in x]
    heads, N, P = len(block.D), block.state, block.head_dim
    per_group, inner = heads // block.groups, heads * P
    H, outputs = [x.new_zeros(P, N) for _ in range(heads)], []
    mixed = [row[inner:-heads] for row in rows]
    for t, row in enumerate(rows):
        xBC, y = functional.silu(convolve(block.conv, mixed, t)), []
        for head in range(heads):
            group = head // per_group
            X = xBC[head * P : (head + 1) * P]
            B, C = (xBC[inner + (k * block.groups + group) * N :][:N] for k in (0, 1))
            dt = torch.log1p(torch.exp(row[len(row) - heads + head] + block.dt_bias[head]))
            dt = dt.clamp(*block.dt_limits)
            H[head] = torch.exp(-torch.exp(block.A_log[head]) * dt) * H[head] + dt * torch.outer(X, B)
            y.append(H[head] @ C + block.D[head] * X)
        outputs.append(gated(block, torch.cat(y), row[:inner]))
    return torch.stack(outputs)


def log_linear_loop(block, x):
    """All pairs of tokens: the weight of the level at which the tree joins them, the decay between them."""
    rows = [block.in_proj.weight @ token for token in x]
    heads, N, P = len(block.D), block.state, block.head_dim
    inner, outputs = heads * P, []
    mixed = [row[inner:-heads] for row in rows]
    xBC = [functional.silu(convolve(block.conv, mixed, t)) for t in range(len(x))]
    for t, row in enumerate(rows):
        y, pairs = [], block.level_proj.weight @ x[t]
        for head in range(heads):
            group, X = head // (heads // block.groups), [row[head * P :][:P] for row in xBC]
            B, C = ([row[inner + (k * block.groups + group) * N :][:N] for row in xBC] for k in (0, 1))
            dt = [torch.log1p(torch.exp(row[len(row) - heads + head] + block.dt_bias[head])) for row in rows]
            Y = block.D[head] * X[t]
            for s in range(t + 1):
                level = (t ^ s).bit_length()
                scale = block.level_scale[head, level] * pairs[head * block.levels + level]
                decay = torch.exp(-torch.exp(block.A_log[head]) * sum(dt[s + 1 : t + 1]))
                Y = Y + torch.log1p(torch.exp(scale)) * decay * (C[t] @ B[s]) * dt[s] * X[s]
            y.append(Y)
        outputs.append(gated(block, torch.cat(y), row[:inner]))
    return torch.stack(outputs)


def turned(x, angles):
    """The first pairs of neighbouring features, each turned by its angle."""
    y = []
    for k, angle in enumerate(angles):
        a, b = x[2 * k], x[2 * k + 1]
        y += [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()]
    return torch.cat([torch.stack(y) if y else x[:0], x[2 * len(angles) :]])


def mamba3_loop(block, x):
    """The paper's recurrence, one write and one read after the other."""
    heads, N, P, ranks, groups = block.heads, block.state, block.head_dim, range(block.rank), block.groups
    H, angle = [x.new_zeros(P, N) for _ in range(heads)], [x.new_zeros(block.angles) for _ in range(heads)]
    before, outputs = [[(x.new_zeros(P), x.new_zeros(N))] * block.rank for _ in range(heads)], []
    for token in x:
        z, X, B, C, dt, A, trap, theta = (block.in_proj.weight @ token).split(block.widths)
        y = []
        for head in range(heads):
            step = torch.log1p(torch.exp(dt[head] + block.dt_bias[head]))
            alpha = torch.exp(-torch.log1p(torch.exp(A[head])).clamp(min=1e-4) * step)
            share = torch.sigmoid(trap[head])
            angle[head] = angle[head] + math.pi * torch.tanh(theta) * step
            rows = [slice((r * groups + head // (heads // groups)) * N, None) for r in ranks]
            K, Q = (
                [turned(rms(part[rows[r]][:N], norm.weight) + bias[head, r], angle[head]) for r in ranks]
                for part, norm, bias in ((B, block.B_norm, block.B_bias), (C, block.C_norm, block.C_bias))
            )
            V, gate = [X[head * P :][:P]] * block.rank, [z[head * P :][:P]] * block.rank
            if block.rank > 1:
                V, gate = (
                    [V[r] * block.mimo_x[head, r] for r in ranks],
                    [gate[r] * block.mimo_z[head, r] for r in ranks],
                )
            H[head] = alpha * H[head]
            for r in ranks:
                H[head] = H[head] + (1 - share) * step * alpha * torch.outer(*before[head][r])
                H[head] = H[head] + share * step * torch.outer(V[r], K[r])
            before[head] = list(zip(V, K, strict=True))
            reads = [(H[head] @ Q[r] + block.D[head] * V[r]) * functional.silu(gate[r]) for r in ranks]
            y.append(sum(block.mimo_o[head, r] * reads[r] for r in ranks) if block.rank > 1 else reads[0])
        outputs.append(block.out_proj.weight @ torch.cat(y))
    return torch.stack(outputs)


def mamba1_loop(block, x):
    rows = [block.in_proj.weight @ token for token in x]
    H, outputs = x.new_zeros(block.inner, block.state), []
    for t, row in enumerate(rows):
        X = functional.silu(convolve(block.conv, [r[: block.inner] for r in rows], t))
        low, B, C = (block.x_proj.weight @ X).split([block.rank, block.state, block.state])
        dt = torch.log1p(torch.exp(block.dt_proj.weight @ low + block.dt_proj.bias))
        H = torch.stack(
            [
                torch.exp(-torch.exp(block.A_log[p]) * dt[p]) * H[p] + dt[p] * X[p] * B  # a channel, its N decays
                for p in range(block.inner)
            ]
        )
        outputs.append(block.out_proj.weight @ ((H @ C + block.D * X) * functional.silu(row[block.inner :])))
    return torch.stack(outputs)


def linear_attention_loop(block, x):
    rows = [block.in_proj.weight @ token for token in x]
    heads, N = block.heads, block.state
    H, outputs = [0] * heads, []
    for t in range(len(x)):
        row, y = functional.silu(convolve(block.conv, rows, t)), []
        for head in range(heads):
            Q, K = (row[(k * heads + head) * N :][:N] for k in (0, 1))
            V = row[2 * heads * N + head * block.head_dim :][: block.head_dim]
            H[head] = H[head] + torch.outer(V, K)
            y.append(H[head] @ Q)
        outputs.append(block.out_proj.weight @ rms(torch.cat(y), block.norm.weight))
    return torch.stack(outputs)


def delta_loop(block, x):
    rows = [block.in_proj.weight @ token for token in x]
    heads, N, P, groups = len(block.A_log), block.state, block.head_dim, block.groups
    inner, H, outputs = heads * P, [x.new_zeros(P, N) for _ in range(heads)], []
    mixed = [row[inner : -2 * heads] for row in rows]
    for t, row in enumerate(rows):
        QKV, y = functional.silu(convolve(block.conv, mixed, t)), []
        for head in range(heads):
            group = head // (heads // groups)
            q, k = (QKV[(part * groups + group) * N :][:N] for part in (0, 1))
            q, k = (u / (u @ u + 1e-6).sqrt() for u in (q, k))
            v, z = QKV[2 * groups * N + head * P :][:P], row[head * P :][:P]
            b, a = row[len(row) - 2 * heads + head], row[len(row) - heads + head]
            decay = torch.exp(-torch.exp(block.A_log[head]) * torch.log1p(torch.exp(a + block.dt_bias[head])))
            state = decay * H[head]
            H[head] = state + torch.outer(torch.sigmoid(b) * (v - state @ k), k)
            u = H[head] @ q / N**0.5
            y.append(block.norm.weight * u / (u.square().mean() + 1e-6).sqrt() * functional.silu(z))
        outputs.append(block.out_proj.weight @ torch.cat(y))
    return torch.stack(outputs)


def delta2_loop(block, x):
    heads, N, P, groups = len(block.gate_proj.bias) // block.head_dim, block.state, block.head_dim, block.groups
    inner, keys = heads * P, groups * N
    rows = [(block.in_proj.weight @ token).split([P, 2 * keys + inner, keys, inner, P]) for token in x]
    H, outputs, mixed = [x.new_zeros(N, P) for _ in range(heads)], [], [row[1] for row in rows]
    for t, (z, _, b, w, a) in enumerate(rows):
        QKV, y = functional.silu(convolve(block.conv, mixed, t)), []
        gate = torch.sigmoid(block.gate_proj.weight @ z + block.gate_proj.bias)
        rate = torch.log1p(torch.exp(block.decay_proj.weight @ a + block.dt_bias))
        for head in range(heads):
            group = head // (heads // groups)
            of_keys, of_values = slice(group * N, (group + 1) * N), slice(head * P, (head + 1) * P)
            q, k = (QKV[part * keys :][of_keys] for part in (0, 1))
            q, k = (u / (u @ u + 1e-6).sqrt() for u in (q, k))
            v = torch.sigmoid(w[of_values]) * QKV[2 * keys :][of_values]
            faded = torch.diag(torch.exp(-torch.exp(block.A_log[group]) * rate[of_keys])) @ H[head]
            H[head] = faded - torch.outer(k, (torch.sigmoid(b[of_keys]) * k) @ faded) + torch.outer(k, v)
            y.append(rms(q @ H[head] / N**0.5, block.norm.weight) * gate[of_values])
        outputs.append(block.out_proj.weight @ torch.cat(y))
    return torch.stack(outputs)


def rwkv7_loop(block, x):
    """As the paper has it: the state is value by key, and read before it decays."""
    heads, N = block.heads, block.head_dim
    S, outputs, previous = [x.new_zeros(N, N) for _ in range(heads)], [], torch.zeros_like(x[0])
    for token in x:
        r, k, v, w, a, g = (token + mu * (previous - token) for mu in block.shift)
        r, k, v = block.R_proj.weight @ r, block.K_proj.weight @ k, block.V_proj.weight @ v
        w = block.w_proj.weight @ torch.tanh(block.w_low_proj.weight @ w) + block.w_proj.bias
        w = torch.exp(-math.exp(-0.5) * torch.sigmoid(w))
        a = torch.sigmoid(block.a_proj.weight @ (block.a_low_proj.weight @ a) + block.a_proj.bias)
        g, y = block.g_proj.weight @ torch.sigmoid(block.g_low_proj.weight @ g), []
        for head in range(heads):
            here = slice(head * N, (head + 1) * N)
            kappa = k[here] * block.key[head, 0]
            kappa = kappa / kappa.norm()
            key = k[here] * (1 + (a[here] - 1) * block.mix[head, 0])
            S[head] = S[head] @ (torch.diag(w[here]) - torch.outer(kappa, a[here] * kappa)) + torch.outer(v[here], key)
            u = S[head] @ r[here]
            u = (u - u.mean()) / (u.var(correction=0) + 1e-5 * N).sqrt()
            u = u * block.norm_weight[here] + block.norm_bias[here]
            y.append(u + (r[here] * block.bonus[head, 0] * key).sum() * v[here])
        outputs.append(block.out_proj.weight @ (torch.cat(y) * g))
        previous = token
    return torch.stack(outputs)


def convolution_loop(block, x):
    return torch.stack([convolve(block.conv, x, t) for t in range(len(x))])


def rotated(x, position, ranks):
    """RoPE of one vector: every level alone, pair by pair."""
    y = []
    for part in x.split(ranks):
        for k in range(len(part) // 2):
            angle = torch.tensor(position * 10000.0 ** (-2 * k / len(part)), dtype=torch.float64).to(x)
            a, b = part[2 * k], part[2 * k + 1]
            y += [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()]
    return torch.stack(y)


def score(mixer, q, k, t, s):
    """The score of one pair; -∞ where a window does not reach."""
    if mixer.rope:
        q, k = rotated(q, t, mixer.ranks), rotated(k, s, mixer.ranks)
    if isinstance(mixer, WindowAttention):
        return q @ k * mixer.scales[0] if t - s <= mixer.window else q.new_tensor(-math.inf)
    if isinstance(mixer, SoftmaxAttention):
        return q @ k * mixer.scales[0]
    parts = zip(mixer.scales, q.split(mixer.ranks), k.split(mixer.ranks), mixer.block_lens, strict=True)
    return sum(scale * (a @ b) for scale, a, b, size in parts if t // size == s // size)


def attention_loop(mixer, x):
    P, outputs = mixer.head_dim, []
    rows = [(mixer.in_proj.weight @ token).split(mixer.widths) for token in x]
    for t in range(len(x)):
        y = []
        for head in range(mixer.heads):
            group = head // (mixer.heads // mixer.groups)
            k, v = ([row[part][group * P : (group + 1) * P] for row in rows[: t + 1]] for part in (1, 2))
            q = rows[t][0][head * P : (head + 1) * P]
            p = torch.stack([score(mixer, q, k[s], t, s) for s in range(t + 1)]).softmax(0)
            y.append(sum(p[s] * v[s] for s in range(t + 1)))
        outputs.append(mixer.out_proj.weight @ torch.cat(y))
    return torch.stack(outputs)


MIXERS = {
    "mamba2": (lambda: Mamba2(12, state=5, head_dim=4), mamba2_loop),
    "mamba2-groups": (lambda: Mamba2(12, state=3, head_dim=2, groups=3, conv_len=2), mamba2_loop),
    "mamba2-one-head": (lambda: Mamba2(12, state=1, head_dim=12, expand=1, conv_len=1), mamba2_loop),
    "log-linear": (lambda: LogLinearMamba2(12, 33, state=5, head_dim=4), log_linear_loop),
    "log-linear-groups": (lambda: LogLinearMamba2(12, 64, 3, 2, groups=3, conv_len=2), log_linear_loop),
    "mamba3": (lambda: Mamba3(12, state=8, head_dim=4), mamba3_loop),
    "mamba3-groups": (lambda: Mamba3(12, state=6, head_dim=2, groups=3, angles=3), mamba3_loop),
    "mamba3-mimo": (lambda: Mamba3(8, state=8, head_dim=4, groups=2, rank=2), mamba3_loop),
    "mamba3-still": (lambda: Mamba3(12, state=5, head_dim=12, expand=1, rank=3, angles=0), mamba3_loop),
    "mamba1": (lambda: Mamba1(12, state=3), mamba1_loop),
    "mamba1-rank": (lambda: Mamba1(12, state=2, expand=1, rank=5, conv_len=3), mamba1_loop),
    "linear": (lambda: LinearAttention(12, state=5, head_dim=4, expand=2), linear_attention_loop),
    "delta": (lambda: GatedDeltaNet(12, state=5, head_dim=4), delta_loop),
    "delta-groups": (lambda: GatedDeltaNet(12, state=4, head_dim=4, expand=2, groups=3, conv_len=2), delta_loop),
    "delta2": (lambda: GatedDeltaNet2(12, state=5, head_dim=4), delta2_loop),
    "delta2-groups": (lambda: GatedDeltaNet2(12, state=4, head_dim=4, expand=2, groups=3, conv_len=2), delta2_loop),
    "rwkv7": (lambda: RWKV7(12, head_dim=4, rank=3), rwkv7_loop),
    "convolution": (lambda: ShortConvolution(12, 3), convolution_loop),
    "softmax": (lambda: SoftmaxAttention(12, heads=3), attention_loop),
    "softmax-context": (lambda: SoftmaxAttention(12, 3, 20), attention_loop),
    "softmax-rope": (lambda: SoftmaxAttention(24, 6, 17, groups=2, rope=True), attention_loop),
    "levels": (lambda: MultiLevelAttention(24, 3, (4, 2, 2), 20), attention_loop),
    "levels-rope": (lambda: MultiLevelAttention(24, 3, (4, 2, 2), 20, rope=True), attention_loop),
    "levels-groups": (lambda: MultiLevelAttention(24, 4, (2, 0, 4), 20, groups=2, rope=True), attention_loop),
    "levels-blocks": (lambda: MultiLevelAttention(24, 2, (3, 5, 4), (18, 6, 3), groups=1), attention_loop),
    "window": (lambda: WindowAttention(24, 3, 4), attention_loop),
    "window-rope": (lambda: WindowAttention(24, 4, 2, groups=2, rope=True), attention_loop),
}
ATTENTION = [name for name, (_, loop) in MIXERS.items() if loop is attention_loop]
RECURRENT = [name for name in MIXERS if name not in ATTENTION]


def build(name, dtype=torch.float64):
    """A mixer away from its symmetric initial values, whose scores are large enough for weights that differ."""
    torch.manual_seed(0)
    mixer = MIXERS[name][0]().to(dtype)
    with torch.no_grad():
        if name in ATTENTION:
            mixer.in_proj.weight *= 2
        for parameter in mixer.parameters() if name in RECURRENT else ():
            parameter += 0.1 * torch.randn_like(parameter)
    return mixer


def loop(mixer, x):
    """The outputs by the formulas of its class."""
    return next(oracle for make, oracle in MIXERS.values() if type(make()) is type(mixer))(mixer, x)


def sequence(mixer, *leading, length=17):
    """Tokens (..., T, D) for a mixer, in its dtype."""
    weight = next(mixer.parameters())
    return random_tensors([(*leading, length, mixer.dim)], seed=1, dtype=weight.dtype)[0]


def read_on(model, x, *ends):
    """The outputs of a mixer or a model for a batch of texts, read up to these places, then one token at a time."""
    cache, rows, start = model.start(len(x)), [], 0
    for end in ends:
        y, cache = model.prefill(x[:, start:end], cache)
        rows, start = [*rows, y], end
    for token in x[:, start:].unbind(1):
        y, cache = model.step(token, cache)
        rows.append(y[:, None])
    return torch.cat(rows, 1)
