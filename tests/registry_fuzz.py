"""What the fuzz draws from: ordinary and strange arguments, what fits each argument's name, and methods to call."""

import random
import warnings

import torch

from smalearn import data, kernel_attention, masks, models, multilevel, scores, ssm, weights
from smalearn.contractions import orders

SIZES = {"T": 6, "N": 4, "P": 3, "M": 2, "D": 12}


def strange_tensors():
    """Tensors that no function takes, or few; PyTorch warns of most of them."""
    x = torch.ones(4, 4)
    nested = [torch.nested.nested_tensor([x, x[:2]], layout=form) for form in (torch.strided, torch.jagged)]
    kinds = [x.to_sparse(), x.to_sparse_csr(), x.to_mkldnn(), torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)]
    dtypes = [x.to(dtype) for dtype in (torch.float8_e4m3fn, torch.bool, torch.int64, torch.complex32)]
    return [*nested, *kinds, *dtypes, torch.zeros(0), torch.zeros(0, 4), torch.tensor(2.0)]


with warnings.catch_warnings(action="ignore"):
    STRANGE_TENSORS = strange_tensors()
NUMBERS = (None, True, -1, 0, 1, 3, 2**70, 1.0, 0.5, -2.5, float("inf"), float("nan"), 1j)
LISTS = ([], [1, 2], (3, 2, 1), ["a"], [None], {}, {"T": 3}, {1, 2}, range(3), [[1], [2]], torch.ones(3).numpy())
WORDS = ("", "TN", "keys", "é" * 200, b"x")
THINGS = (object(), len, lambda x: x, int, torch.float16, torch.int64, torch.device("cpu"), slice(2))
STRANGE = [*NUMBERS, *LISTS, *WORDS, *THINGS, torch.nn.Linear(4, 4)]
OTHER_DTYPES = [*[torch.float64, torch.float16, torch.bfloat16] * 2, torch.complex64]
ORDINARY = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)


def is_dense(x: torch.Tensor) -> bool:
    """Whether a tensor's entries stand in memory as they are."""
    return x.layout is torch.strided and not (x.is_nested or x.is_quantized)


class Draw:
    """Arguments of one call, from one seed."""

    def __init__(self, seed: int):
        self.random, self.generator = random.Random(seed), torch.Generator().manual_seed(seed)
        leading = [(), (), (2,), (2, 3)]
        self.leading, self.finite = self.random.choice(leading), True
        self.dtype = self.random.choice([torch.float32] * 8 + OTHER_DTYPES)

    @property
    def real(self) -> torch.dtype:
        """The dtype of this call, a real one: that of weights."""
        return torch.float32 if self.dtype.is_complex else self.dtype

    def tensor(self, axes: str = "tn", leading: tuple[int, ...] | None = None) -> torch.Tensor:
        """Normal numbers with the leading axes of this call and these axes, a letter of SIZES or a digit each."""
        sizes = [int(axis) if axis.isdigit() else SIZES[axis.upper()] for axis in axes]
        shape = (*(self.leading if leading is None else leading), *sizes)
        return torch.randn(shape, generator=self.generator).to(self.dtype)

    def strange(self):
        """An argument of any type: a tensor of another kind, shape, dtype or value, a structured matrix, or no such."""
        kind = self.random.randrange(6)
        if kind == 0:
            return self.random.choice(STRANGE_TENSORS)
        if kind == 1:
            return self.random.choice(list(MATRICES.values()))(self)
        if kind == 2:
            shape = [self.random.choice([0, 1, 2, 3, 4, 6]) for _ in range(self.random.randrange(5))]
            dtypes = [self.dtype] * 3 + [torch.float32, torch.float64, torch.complex64, torch.float16, torch.int32]
            return torch.randn(shape, generator=self.generator).to(self.random.choice(dtypes))
        return self.random.choice(STRANGE)

    def changed(self, value):
        """A good tensor with one thing changed: an axis more or less, its dtype, an odd value."""
        if not isinstance(value, torch.Tensor) or not is_dense(value) or not value.numel():
            return self.strange()
        changes = [
            lambda: value[None],
            lambda: value[..., None],
            lambda: value[..., :1] if value.ndim else value,
            lambda: value.flatten(),
            lambda: value[0] if value.ndim else value,
            lambda: value.double(),
            lambda: value.to(torch.complex64),
            lambda: value * float("nan"),
            lambda: value * float("inf"),
            lambda: value * 1e30,
            lambda: value.to("meta"),
            lambda: value.detach().requires_grad_() if value.is_floating_point() else value,
        ]
        try:
            return self.random.choice(changes)()
        except (RuntimeError, UserWarning):  # a strange tensor need not have such a neighbour
            return value


MATRICES = {
    "mask": lambda d: masks.CausalMask(6),
    "decay": lambda d: masks.DecayMask(6, 0.5),
    "banded": lambda d: masks.BandedMask(6, 6, 2),
    "hierarchical": lambda d: masks.HierarchicalMask(-d.tensor("t").abs(), d.tensor("tn").abs()),
    "low rank": lambda d: masks.LowRankMask(d.tensor("t2"), d.tensor("t2")),
    "semiseparable mask": lambda d: masks.SemiseparableMask(-d.tensor("t").abs()),
    "Fourier": lambda d: masks.FourierMask(6),
    "view": lambda d: 2 * masks.CausalMask(6).mT,
    "semiseparable": lambda d: ssm.Semiseparable(d.tensor("tn"), d.tensor("tn"), d.tensor("tn")),
    "weight": lambda d: weights.LowRank.random(4, 4, 2, 0, d.real),
    "other weight": lambda d: d.random.choice(SQUARE)(d.real),
    "map": lambda d: kernel_attention.EluPlusOne(4),
    "model": lambda d: models.Mamba2(4, state=4, head_dim=4),
}
SQUARE = [
    lambda dtype: weights.BlockDiagonal.random(4, 4, 2, 0, dtype),
    lambda dtype: weights.BlockTensorTrain.random((2, 2, 2, 2), 1, 0, dtype),
    lambda dtype: weights.MultiLevelLowRank.random((4, 4), (1, 1), (1, 2), 0, dtype),
    lambda dtype: weights.Kronecker.random((2, 2, 2, 2), 0, dtype),
    lambda dtype: weights.Butterfly.random(4, 0, dtype),
    lambda dtype: weights.BlockLowRank.random(4, 4, 2, 1, 0, dtype),
]
LEVELS = [weights.Level((2, 2), (4,)), weights.Level((4,), (2, 2))]


def of(axes, leading=None):
    """A function that draws a tensor with these axes."""
    return lambda d: d.tensor(axes, leading)


def one_of(*values):
    """A function that draws one of these values."""
    return lambda d: d.random.choice(values)


def numbers(high, *axes):
    """A function that draws integers below a limit."""
    return lambda d: torch.randint(high, (*d.leading, *axes), generator=d.generator)


def matrix(*names):
    """A function that draws one of these structured matrices."""
    return lambda d: MATRICES[d.random.choice(names)](d)


def decays(axes):
    """A function that draws log decays."""
    return lambda d: -d.tensor(axes).abs()


def strengths(axes):
    """A function that draws β of the delta rule."""
    return lambda d: d.tensor(axes).abs().clamp(max=2) if not d.dtype.is_complex else d.tensor(axes)


# What fits an argument of this name, unless the function has its own.
ARGUMENTS = {
    **{name: of("tn") for name in ("Q", "K", "B", "C", "x", "M", "A")},
    **{name: of("tp") for name in ("V", "X")},
    **{"q": of("n"), "k": of("n"), "v": of("p"), "initial_state": of("pn"), "state": of("pn"), "log_a": decays("t")},
    "beta": strengths("t"),
    **dict.fromkeys(("read", "erase"), of("tn")),
    "eps": one_of(1e-6, 0.1),
    "L": lambda d: d.random.choice([MATRICES["mask"], MATRICES["decay"], lambda d: d.tensor("tt").abs()])(d),
    "dtype": one_of(None, torch.float64, torch.float16),
    "phi": lambda d: kernel_attention.EluPlusOne(4),
    "weights": lambda d: [d.random.choice(SQUARE)(d.real)] * 2,
    "weight": matrix("weight", "other weight"),
    "ranks": one_of((2, 2), [2, 2], (4,)),
    "block_lens": one_of((6, 3), [8, 4], (6,)),
    "sizes": one_of((2, 2, 2, 2), (1, 4, 2, 2)),
    "blocks": one_of(1, 2),
    "order": one_of("keys", None, "dense"),
    "gamma": one_of(0.5, 1, torch.tensor([0.5, 0.25])),
    "loss": one_of("cross-entropy", "squared error"),
    "rope": one_of(True, False),
    "causal": one_of(True, False),
    "source": one_of(6),
    "leading": one_of((), (2,)),
    "reset": lambda d: numbers(2, 6)(d).bool(),
    "since": lambda d: numbers(1, 6)(d),
    "m": one_of(4, 2),
    "n": one_of(4, 2),
}
NUMBER = one_of(1, 2, 3, 6)
COMBINE = {
    "combine": one_of(lambda a, b: tuple(x * y for x, y in zip(a, b, strict=True))),
    "elements": lambda d: (d.tensor("t11"), d.tensor("t11")),
}
OF_M = {
    name: {"M": matrix("semiseparable"), "order": one_of("time", "state")}
    for name in ("bidiagonal_inverse", "block_factors", "product_generators", "tril_factors")
}
SQUARE_M = {
    name: {"M": lambda d: d.tensor("tt").tril(), "tolerance": one_of(None, 1e-3)}
    for name in ("block_ranks", "from_dense")
}
STEP = {"x": of("p"), "log_a": decays(""), "B": of("n"), "C": of("n"), "state": of("pn")}
PROMPT = {"X": of("tn"), "y": of("t")}
MULTIPLE = {
    "spec": one_of("TN, SN -> TS", "TN -> T", "TN, SN, SP -> TP"),
    "tensors": lambda d: (d.tensor(), d.tensor()),
}
CLASS = {"inputs": one_of(4), "W": of("mn")}
FACTORS = {"L": of("nm", ()), "R": of("nm", ())}
# What fits an argument of one function.
OWN = {
    **OF_M,
    **SQUARE_M,
    **dict.fromkeys(("scan_by_pairs", "scan_by_doubling"), COMBINE),
    **dict.fromkeys(("ssd_step", "ssd_step_"), STEP),
    **dict.fromkeys(("least_squares", "regression_prompt"), PROMPT),
    **{name: {**CLASS} for name in kernel_attention.__all__ if name[0].isupper()},
    **{
        name: {
            "X": of("tn"),
            "V": lambda d: d.tensor("2tp"),
            "order": one_of(None, "keys", "dense"),
            "logits": one_of(None, scores.Logits(), scores.Logits(norm=2.0)),
        }
        for name in ("bilinear_attention", "bilinear_scores", "bilinear_weights")
    },
    "diagonal_ssm_as_attentions": {"log_a": decays("tn")},
    "delta_rule_step": {"log_a": decays(""), "beta": strengths(""), "state": of("pn")},
    "generalized_delta_rule_step": {"log_a": decays(""), "state": of("pn"), "read": of("n"), "erase": of("n")},
    "log_linear_attention": {"level_weights": of("tn")},
    "log_linear_step": {"log_a": decays(""), "level_weights": of("n"), "states": of("npn"), "length": one_of(0, 3, 5)},
    "linear_attention_step": {"log_a": decays(""), "state": of("pn")},
    "gated_slot_attention": {
        "log_a": decays("tm"),
        "initial_state": lambda d: d.random.choice([None, (d.tensor("mn"), d.tensor("mp"))]),
    },
    "slot_weights": {"log_a": decays("tm"), "initial_state": of("mn")},
    "discretise_mamba": {"dt": decays("t"), "A": decays("tn")},
    "discretise_trapezoid": {"dt": decays("t"), "A": decays("tn"), "weight": of("t")},
    "discretise_zero_order_hold": {"dt": decays("t"), "A": lambda d: d.tensor(d.random.choice(["t", "tn", "tnn"]))},
    "linformer": {"E": of("mt"), "F": of("mt")},
    "LowRank": FACTORS,
    "BlockDiagonal": {"W": of("2mm", ())},
    "BlockLowRank": {"L": of("2m1", ()), "R": of("2m1", ())},
    "BlockTensorTrain": {"L": of("2221", ()), "R": of("2221", ())},
    "Monarch": {"L": of("2221", ()), "R": of("2221", ())},
    "Butterfly": {"B": of("2222", ())},
    "Kronecker": {"A": of("22", ()), "B": of("23", ())},
    "MultiLevelLowRank": {
        "L": of("nn", ()),
        "R": of("nn", ()),
        "ranks": one_of((2, 2)),
        "blocks": one_of((1, 2), [1, ([1, 3], [2, 2])]),
    },
    "MultiLevelBlockTensorContraction": {
        "L": lambda d: [d.tensor("n1", ()), d.tensor("n2", ())],
        "R": lambda d: [d.tensor("n2", ()), d.tensor("n1", ())],
        "levels": one_of(LEVELS),
    },
    "HierarchicalMask": {"level_weights": of("tn")},
    "Quasiseparable": {"lower": matrix("semiseparable"), "diagonal": of("t"), "upper": matrix("semiseparable")},
    "LowRankMask": {"U": of("tm"), "V": of("tm")},
    "HadamardMask": {"factor": matrix("low rank"), "mask": matrix("mask", "decay")},
    "IntersectionMask": {"sparse": matrix("banded"), "other": matrix("mask", "banded")},
    "hadamard": {"L1": matrix("decay", "low rank"), "L2": matrix("decay", "mask", "semiseparable mask")},
    "ToeplitzMask": {"column": of("t"), "row": of("t")},
    "dense_mask": {"like": of("tn")},
    "sma_sparse": {"L": matrix("banded")},
    "contract": MULTIPLE,
    "parse_spec": {"function": one_of("parse_spec"), "spec": MULTIPLE["spec"]},
    "orders": {
        "spec": one_of("TN, SN -> TS", "TN, SN, SP -> TP"),
        "sizes": one_of({"T": 2, "S": 3, "N": 4, "P": 1}),
        "names": one_of(None, "QK", ["Q", "K"]),
        "structured": one_of(()),
    },
    "sma_orders": {"scan": one_of(True, False)},
    "scan_cost": {"method": one_of("pairs", "doubling")},
    "PowerSeries": {**CLASS, "coefficients": one_of([1, 0.5], (1.0,))},
    "rope": {"positions": one_of(None), "base": one_of(10.0)},
    "rope_levels": {"positions": one_of(None), "base": one_of(10.0), "ranks": one_of((2, 2))},
    "parse_ranks": {"text": one_of("2|2", "32")},
    "receptive_field": {"windows": one_of([2, None], (3, 1))},
    "multilevel_attention": {"bias": one_of(None), "Q": of("tn")},
    "mamba2_ssd": {
        **dict.fromkeys(("x", "z"), of("t4p")),
        **dict.fromkeys(("B", "C"), of("t2n")),
        **dict.fromkeys(("D", "dt_bias"), of("4", ())),
        "dt": of("t4"),
        "A": lambda d: -d.tensor("4", ()).abs(),
        "dt_softplus": one_of(True, False),
        "dt_limit": one_of((0.0, 1.0), [0.1, 2]),
        "initial_state": of("4pn"),
        "cu_seqlens": one_of(None),
    },
    "BilinearAttention": {
        "dim": one_of(4),
        "heads": one_of(2),
        "scoring": one_of(None, lambda seed: weights.LowRank.random(4, 4, 2, seed)),
        "value": one_of(None),
        "kv_heads": one_of(None, 1),
        "logits": one_of(None),
    },
    "Block": {"mixer": matrix("model")},
    "generate": {
        "model": lambda d: models.SequenceModel(7, [models.Block(models.Mamba2(4, state=4, head_dim=4))]),
        "tokens": one_of(torch.tensor([1, 2])),
        "length": one_of(2),
        "top_p": one_of(0.5),
        "temperature": one_of(1.0),
        "cache": one_of(None),
        "reset": one_of(torch.tensor([False, True])),
    },
    "SequenceModel": {
        "vocabulary": one_of(7),
        "blocks": lambda d: [models.Block(models.Mamba2(4, state=4, head_dim=4))],
    },
    **{
        name: {
            "dim": one_of(12),
            "heads": one_of(3),
            "groups": one_of(None, 3, 1),
            "ranks": one_of((2, 2)),
            "context": one_of(None, 8),
            "head_dim": one_of(4),
            "conv_len": one_of(3),
            "angles": one_of(None, 1),
        }
        for name in (
            *("GroupedAttention", "MultiLevelAttention", "SoftmaxAttention", "WindowAttention"),
            *("Hydra", "LinearAttention", "LogLinearMamba2", "Mamba2", "Mamba3"),
        )
    },
    "GatedRMSNorm": {"channels": one_of(12)},
    "initial_dt_bias": {"shortest": one_of(1e-3), "longest": one_of(0.1)},
    "excerpts": {"codes": lambda d: torch.arange(20)},
    "full_rank_head": {"queries": of("n"), "X": of("tn"), "beta": one_of(1.0, 3)},
    "mqar": {"length": one_of(12), "pairs": one_of(2), "vocabulary": one_of(8), "power": one_of(0.01, 1)},
    "mqar_lookup": {"inputs": numbers(8, 12), "pairs": one_of(2)},
    "ngram_features": {"tokens": one_of(["a", "b", "a"])},
    "series_windows": {"part": of("t2", ()), "begin": one_of(torch.tensor([0, 1]))}
    | {"context": one_of(2), "horizon": one_of(1)},
    "split_series": {"values": lambda d: torch.randn(14_400, 2, generator=d.generator)},
    "split_text": {"codes": lambda d: torch.arange(20), "part": one_of(0.1)},
    "Vocabulary": {"text": one_of("hello")},
    "Plan": {
        "lr": one_of(0.1),
        "warmup": one_of(0.0, 0.5),
        "weight_decay": one_of(0, 0.1),
        "clip": one_of(1.0),
        "scales": one_of({}),
    },
}
# Methods with their arguments, on an instance that fits.
METHODS = {
    **{
        f"{type(MATRICES[name](Draw(0))).__name__}.{method}": (
            MATRICES[name],
            {"x": of("tp"), "y": of("tp"), "dtype": one_of(None, torch.float64)},
        )
        for name in ("mask", "decay", "banded", "low rank", "semiseparable mask", "Fourier", "semiseparable")
        for method in ("matmul", "transpose_matmul", "dense")
    },
    "LowRank.forward": (MATRICES["weight"], {"x": of("n")}),
    "LowRank.bilinear": (MATRICES["weight"], {"x": of("n"), "y": of("n")}),
    "LowRank.matmul": (MATRICES["weight"], {"x": of("np")}),
    "LowRank.transpose_matmul": (MATRICES["weight"], {"y": of("np")}),
    **{f"EluPlusOne.{method}": (MATRICES["map"], {}) for method in ("query", "key", "fit")},
    "PositiveRandom.fit": (lambda d: kernel_attention.PositiveRandom(d.tensor("mn", ())), {}),
    "Semiseparable.solve": (MATRICES["semiseparable"], {"y": of("tp"), "diagonal": decays("t")}),
    "KeyCache.read": (lambda d: multilevel.KeyCache(d.leading, (2, 2), (8, 4), 3, like=d.tensor()), {}),
    "KeyCache.append": (lambda d: multilevel.KeyCache(d.leading, (2, 2), (8, 4), 3, like=d.tensor()), {}),
    "WindowCache.read": (lambda d: multilevel.WindowCache(d.leading, 4, 2, 3, like=d.tensor()), {}),
    "Orders.named": (lambda d: orders("TN, SN -> TS", {"T": 2, "S": 2, "N": 2}), {"name": one_of("(TN)·SN", "x")}),
    "Order.run": (
        lambda d: orders("TN, SN -> TS", {"T": 2, "S": 2, "N": 2})[0],
        {"tensors": lambda d: (d.tensor(), d.tensor())},
    ),
    "Vocabulary.encode": (lambda d: data.Vocabulary("hello"), {"text": one_of("hole", "x")}),
    "Vocabulary.decode": (lambda d: data.Vocabulary("hello"), {"codes": lambda d: torch.tensor([0, 1])}),
    "BilinearAttention.forward": (lambda d: scores.BilinearAttention(4, 2).to(d.dtype), {}),
    **{
        f"{type(make()).__name__}.{method}": (
            lambda d, make=make: make().to(d.dtype),
            {"x": of("d" if method == "step" else "td")},
        )
        for make in (
            lambda: models.Mamba2(12, 4, 4),
            lambda: models.Mamba1(12, 2),
            lambda: models.SoftmaxAttention(12, 3),
            lambda: models.LinearAttention(12, 4, 4),
            lambda: models.GatedDeltaNet(12, state=3, head_dim=4),
            lambda: models.GatedDeltaNet2(12, state=3, head_dim=4),
            lambda: models.RWKV7(12, head_dim=4, rank=2),
            lambda: models.ShortConvolution(12),
            lambda: models.WindowAttention(12, 3, 2),
        )
        for method in ("forward", "step", "prefill", "start")
    },
    **{
        f"CausalConvolution.{method}": (
            lambda d: models.CausalConvolution(4, 3).to(d.dtype),
            {"x": of("n" if method == "step" else "tn"), "conv_state": of("2n")},
        )
        for method in ("prefill", "step")
    },
    "GatedRMSNorm.forward": (lambda d: models.GatedRMSNorm(4, 2).to(d.dtype), {"y": of("tn"), "z": of("tn")}),
    **{
        f"SequenceModel.{method}": (
            lambda d: models.SequenceModel(7, [models.Block(models.Mamba2(4, 4, 4))], 9),
            {"tokens": numbers(7, 6), "token": numbers(7)},
        )
        for method in ("forward", "step", "prefill")
    },
}
