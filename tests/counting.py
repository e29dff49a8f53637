"""What torch really computes, counted as it is called; what a program of tiles reads and writes."""

import collections

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
PRODUCTS = {aten.mm, aten.bmm, aten.mv, aten.dot, aten.addmm, aten.baddbmm, aten.baddbmm_}


class Counter(TorchDispatchMode):
    """Multiply-adds of products of matrices and of entrywise ones, additions, numbers read and written, and calls.

    Attributes:
        shapes: of every product of matrices its multiply-adds, its smallest size and the size that is summed over.
        launches: calls that are no views, each of them a launch on a GPU.
        names: of these calls.
    """

    def __init__(self):
        super().__init__()
        self.entrywise = self.additions = self.moved = self.calls = self.launches = 0
        self.shapes, self.names = [], set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name = function.overloadpacket
        self.calls += 1
        if not function.is_view:
            self.launches += 1
            self.names.add(name.__name__)
        if name in PRODUCTS:
            inner = args[-2].shape[-1]
            self.shapes.append((out.numel() * inner, min(*args[-2].shape[-2:], args[-1].shape[-1]), inner))
        if name in (aten.mul, aten.addcmul):
            self.entrywise += out.numel()
        if name in (aten.add, aten.addcmul):
            self.additions += out.numel()
        if name in {*PRODUCTS, aten.mul, aten.add, aten.addcmul}:
            self.moved += sum(x.numel() for x in (*args, out) if isinstance(x, torch.Tensor))
        return out

    @property
    def products(self):
        return sum(macs for macs, _, _ in self.shapes)

    @property
    def macs(self):
        return self.products + self.entrywise


def counted(function, *args, **kwargs):
    with torch.no_grad(), Counter() as counter:
        result = function(*args, **kwargs)
    return counter, result


def slope(cost, *sizes):
    """Exponent of a cost in a size, by least squares between the logarithms."""
    x, y = (torch.tensor(values, dtype=torch.float64).log() for values in (sizes, [cost(size) for size in sizes]))
    return (((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()).item()


def moved(events):
    """Bytes that programs load and store, by the operand."""
    found = collections.Counter()
    for event in events:
        found[event.operand] += event.bytes
    return found


def written(events):
    """How many times each entry is stored, by the operand and the entry's offset."""
    stores = (event for event in events if event.kind == "store")
    return collections.Counter(
        (event.operand, offset) for event in stores for offset in event.offsets.ravel() if offset >= 0
    )
