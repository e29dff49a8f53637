"""What we use of PyTorch under private names, each with the reason why no public one will do.

A new release of PyTorch may move any of it: then it is mended here.
"""

import copy
from collections.abc import Callable

import torch

# As a context, neither modes nor subclasses see PyTorch's calls. `torch.overrides` has only the half that calls them.
plain_calls = torch._C.DisableTorchFunction
# `torch.use_deterministic_algorithms` sets the same, and imports half of the compiler first.
set_deterministic = torch._C._set_deterministic_algorithms
# `torch.func` does not say that one of its transforms is at work.
in_transform = torch._C._are_functorch_transforms_active


def unwrapped(x: torch.Tensor) -> torch.Tensor:
    """The tensor inside of those that `torch.func.vmap` made of it; they give no public way to it."""
    while torch._C._functorch.is_batchedtensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x


def of_older_vmap(x: torch.Tensor) -> bool:
    """Whether x is of the vmap before that of `torch.func`, by which `is_grads_batched=True` marks gradients."""
    return torch._C._functorch.is_legacy_batchedtensor(x)


def remove_batch(x: torch.Tensor) -> torch.Tensor:
    """A tensor of the older vmap with its batch as the first axis: that vmap is public no more."""
    return torch._remove_batch_dim(x, 1, 1, 0)


def add_batch(x: torch.Tensor) -> torch.Tensor:
    """Invert `remove_batch`."""
    return torch._add_batch_dim(x, 0, 1)


def kept_modes() -> Callable[[], None]:
    """Make a function that leaves the modes, as of `torch.device`, that were entered since: none but they can."""
    functions, dispatches = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()

    def restore() -> None:
        while torch._C._len_torch_function_stack() > functions:
            torch._C._pop_torch_function_stack()
        while torch._C._len_torch_dispatch_stack() > dispatches:
            torch._C._pop_torch_dispatch_stack(None)

    return restore


def kept_print_options() -> Callable[[], None]:
    """Make a function that prints tensors as now: `torch.set_printoptions` sets, and nothing tells what is set."""
    options = copy.copy(torch._tensor_str.PRINT_OPTS)

    def restore() -> None:
        torch._tensor_str.PRINT_OPTS = copy.copy(options)

    return restore
