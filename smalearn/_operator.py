"""Fast code as one operation of PyTorch, which `torch.compile`, `torch.export`, `torch.func` and autograd accept.

Fast code writes into scratch memory, which PyTorch can neither trace nor differentiate. What it has to know instead is
said here once: shapes for tracing, a batch of calls for `vmap`, and the readable form, the same function in plain
PyTorch, for derivatives of the gradients.
"""

from collections.abc import Callable
from functools import wraps

import torch
from torch.autograd import forward_ad
from torch.library import custom_op

from smalearn._torch import add_batch, of_older_vmap, remove_batch, unwrapped

SCHEMA = "(Tensor?[] tensors, float[] settings, bool keep) -> Tensor[]"
SCHEMA_BACKWARD = "(Tensor?[] gradients, Tensor?[] tensors, Tensor[] kept, float[] settings, bool[] needs) -> Tensor[]"


class Operator:
    """A function of tensors with gradients that PyTorch's transforms see as one operation.

    Some of its tensors may be None. All others, and all results, share their first axis, the batch: `vmap` folds its
    own axis into it.

    Args:
        name: of the operation, and of the public function that messages speak of.
        forward: (tensors, settings, keep) → results, followed if `keep` by what `backward` wants kept.
        backward: (gradients of the results, tensors, kept, settings, needs) → gradients of the tensors, anything where
            `needs` is False: the operation returns one for each True. That of a result that nobody uses is None.
        shapes: like `forward`, for tensors without values: results of its shapes, dtypes and strides.
        readable: (tensors, settings) → results in plain PyTorch, which second derivatives differentiate.
        counts: how many tensors there are, and how many results.
        kept_from: index in what `forward` returns from which on it is kept for `backward`: the number of results for
            the rest alone, 0 for the results too, None for nothing.
        instead: what to use for forward mode, which this operation lacks.
    """

    def __init__(
        self,
        name: str,
        forward: Callable,
        backward: Callable,
        shapes: Callable,
        readable: Callable,
        counts: tuple[int, int],
        kept_from: int | None,
        instead: str,
    ):
        self.name, self.readable, self.instead = name, readable, instead
        self.num_tensors, self.num_results = counts
        self.kept = slice(0, 0) if kept_from is None else slice(kept_from, None)

        def run_forward(tensors, settings, keep):
            with _without_autocast(tensors):
                return forward(tensors, settings, keep)

        def run_backward(gradients, tensors, kept, settings, needs):
            if kept_from is not None and not kept:
                kept = run_forward(tensors, settings, True)[self.kept]
            with _without_autocast(tensors):
                grads = backward(gradients, tensors, kept, settings, needs)
            return [_like(x, grad) for x, grad, need in zip(tensors, grads, needs, strict=True) if need]

        def backward_shapes(gradients, tensors, kept, settings, needs):
            return [torch.empty_like(x) for x, need in zip(tensors, needs, strict=True) if need]

        self.forward = custom_op(f"smalearn::{name}", run_forward, mutates_args=(), schema=SCHEMA)
        self.forward.register_fake(shapes)
        self.forward.register_vmap(self._forward_vmap)
        self.backward = custom_op(f"smalearn::{name}_backward", run_backward, mutates_args=(), schema=SCHEMA_BACKWARD)
        self.backward.register_fake(backward_shapes)
        self.backward.register_vmap(self._backward_vmap)

    def __call__(self, *tensors: torch.Tensor | None, settings: tuple[float, ...] = ()) -> tuple[torch.Tensor, ...]:
        """Compute the results of tensors that have been checked."""
        no_forward_mode = NotImplementedError(f"{self.name} has no forward mode (jvp): use {self.instead}")
        if not torch.compiler.is_compiling() and any(x is not None and _has_tangent(x) for x in tensors):
            raise no_forward_mode
        # An exported program has no backward, and what is kept for one may have a shape that fixes the length.
        differentiated = torch.is_grad_enabled() and not torch.compiler.is_exporting()
        if differentiated and any(x is not None and _needs_gradient(x) for x in tensors):
            try:
                return _Forward.apply(self, settings, *tensors)[: self.num_results]
            except NotImplementedError as error:
                raise no_forward_mode from error
        return tuple(self.forward(tensors, settings, False))

    def _forward_vmap(self, info, in_dims, tensors, settings, keep):
        """One call for the batch. Nothing is kept, for want of an axis to unfold; the backward computes it again."""
        return _unfold(self.forward(_fold(tensors, in_dims[0], info.batch_size), settings, False), info.batch_size)

    def _backward_vmap(self, info, in_dims, gradients, tensors, kept, settings, needs):
        """One call for the batch."""
        operands = (
            _fold(some, dims, info.batch_size) for some, dims in zip((gradients, tensors), in_dims, strict=False)
        )
        return _unfold(self.backward(*operands, [], settings, needs), info.batch_size)


def of_batches(backward: Callable) -> Callable:
    """Give the backward of a `torch.autograd.Function` batches of gradients, as `is_grads_batched=True` asks for.

    PyTorch marks such gradients by an older `vmap`, which calls no rule of ours; `torch.func.vmap` does.
    """

    @wraps(backward)
    def of_any(ctx, *gradients):
        if torch.compiler.is_compiling() or not any(map(_of_batch, gradients)):
            return backward(ctx, *gradients)

        def present(*some):
            return {i: x for i, x in enumerate(backward(ctx, *some)) if x is not None}

        dims = tuple(0 if _of_batch(x) else None for x in gradients)
        batches = [remove_batch(x) if _of_batch(x) else x for x in gradients]
        grads = torch.func.vmap(present, dims)(*batches)
        places = range(len(ctx.needs_input_grad))
        return tuple(add_batch(grads[i]) if i in grads else None for i in places)

    return of_any


class _Forward(torch.autograd.Function):
    """Results of an operator, and what it keeps."""

    generate_vmap_rule = True

    @staticmethod
    def forward(operator, settings, *tensors):
        return tuple(operator.forward(tensors, settings, True))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.operator, ctx.settings, *tensors = inputs
        ctx.save_for_backward(*tensors, *output[ctx.operator.kept])
        ctx.mark_non_differentiable(*output[ctx.operator.num_results :])
        ctx.set_materialize_grads(False)

    @staticmethod
    @of_batches
    def backward(ctx, *gradients):
        operator, settings, needs = ctx.operator, ctx.settings, ctx.needs_input_grad[2:]
        saved = ctx.saved_tensors  # once: what checkpointing computes again may be taken once
        tensors, kept = saved[: operator.num_tensors], saved[operator.num_tensors :]
        gradients = gradients[: operator.num_results]
        if all(x is None for x in gradients):
            return None, None, *(None for _ in tensors)
        if torch.compiler.is_compiling():
            grads = iter(operator.backward(gradients, tensors, kept, settings, needs))
        else:
            grads = iter(_Backward.apply(operator, settings, needs, *gradients, *tensors, *kept))
        return None, None, *(next(grads) if need else None for need in needs)


class _Backward(torch.autograd.Function):
    """Gradients of an operator. Their own derivatives are those of the readable form."""

    generate_vmap_rule = True

    @staticmethod
    def forward(operator, settings, needs, *operands):
        gradients, tensors, kept = _parts(operator, operands)
        return tuple(operator.backward(gradients, tensors, kept, settings, needs))

    @staticmethod
    def setup_context(ctx, inputs, output):
        *ctx.fixed, ctx.count = *inputs[:3], len(inputs)
        gradients, tensors, _ = _parts(inputs[0], inputs[3:])
        ctx.save_for_backward(*gradients, *tensors)

    @staticmethod
    @of_batches
    def backward(ctx, *grad_grads):
        operands = ctx.saved_tensors
        present = [i for i, x in enumerate(operands) if x is not None]

        def readable_gradients(*some):
            gradients, tensors, _ = _parts(ctx.fixed[0], _replaced(operands, present, some))
            return _readable_gradients(*ctx.fixed, gradients, tensors)

        _, pull_back = torch.func.vjp(readable_gradients, *(operands[i] for i in present))
        return None, None, None, *_replaced([None] * (ctx.count - 3), present, pull_back(grad_grads))


def _readable_gradients(operator, settings, needs, gradients, tensors):
    """Gradients of the tensors that need one, by the readable form."""
    differentiated = [i for i, need in enumerate(needs) if need]
    used = [i for i, x in enumerate(gradients) if x is not None]

    def used_results(*some):
        results = operator.readable(_replaced(tensors, differentiated, some), settings)
        return tuple(results[i] for i in used)

    _, pull_back = torch.func.vjp(used_results, *(tensors[i] for i in differentiated))
    return pull_back(tuple(gradients[i] for i in used))


def _replaced(items, where, others):
    """A list with other items at some places."""
    replaced = list(items)
    for i, other in zip(where, others, strict=True):
        replaced[i] = other
    return replaced


def _parts(operator, operands):
    """Split operands into gradients of the results, tensors and what was kept."""
    end = operator.num_results + operator.num_tensors
    return operands[: operator.num_results], operands[operator.num_results : end], operands[end:]


def _fold(tensors, in_dims, size):
    """Fold the axis of `vmap` into the first axis; repeat what is not batched."""
    pairs = zip(tensors, in_dims, strict=True)
    fronts = [x if x is None else x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in pairs]
    return [x if x is None else x.flatten(0, 1) for x in fronts]


def _unfold(results, size):
    """Unfold the axis of `vmap` from the first axis; return the results, and where it is."""
    return [x.unflatten(0, (size, -1)) for x in results], [0] * len(results)


def _without_autocast(tensors):
    """Compute in the dtypes of the tensors, also under `torch.autocast`."""
    return torch.autocast(next(x.device.type for x in tensors if x is not None), enabled=False)


def _needs_gradient(x):
    """Whether x needs a gradient; a tensor of `vmap` inside of `grad` does not say so itself."""
    return x.requires_grad if torch.compiler.is_compiling() else unwrapped(x).requires_grad


def _of_batch(x):
    """Whether a gradient is one of the older vmap."""
    return x is not None and of_older_vmap(x)


def _has_tangent(x):
    """Whether derivatives are computed along with x, in forward mode."""
    return forward_ad.unpack_dual(x).tangent is not None


def _like(x, gradient):
    """The gradient in shape, dtype and strides of x, which PyTorch has been promised."""
    gradient, promised = gradient.sum_to_size(x.shape).to(x.dtype), torch.empty_like(x, device="meta")
    return gradient if gradient.stride() == promised.stride() else torch.empty_like(x).copy_(gradient)
