"""What torch really computes, counted as it is called."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class Counter(TorchDispatchMode):
    """Multiply-adds of matrix products and of entrywise products, and calls of any kind."""

    def __init__(self):
        super().__init__()
        self.products = self.entrywise = self.calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        out = function(*args, **(kwargs or {}))
        if function.overloadpacket in (aten.bmm, aten.mm, aten.baddbmm, aten.baddbmm_):
            self.products += args[-2].numel() * args[-1].shape[-1]
        if function.overloadpacket == aten.mul:
            self.entrywise += out.numel()
        return out

    @property
    def macs(self):
        return self.products + self.entrywise


def counted(function, *args):
    with Counter() as counter:
        result = function(*args)
    return counter, result
