"""The Mamba-2 layer whose decay is the same at every token, which the chapter trains beside the layer itself."""

from torch.nn import functional

from smalearn.models import Mamba2

__all__ = ["ConstantDecay"]


class ConstantDecay(Mamba2):
    """Mamba-2 that forgets alike at every token; how strongly it writes a token still depends on the token."""

    def _operands(self, xBC, dt):
        X, inputs, log_a, B, C = super()._operands(xBC, dt)
        constant = -self.A_log.exp() * functional.softplus(self.dt_bias)
        return X, inputs, constant.view(self.groups, self.heads_per_group).expand_as(log_a), B, C
