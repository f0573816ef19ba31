"""The network with fused blocks is the network."""

import copy

import pytest
import torch

from model.s4convd import S4ConvD


@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize("norm", [False, True])
def test_fused_blocks_are_the_same_network(norm: bool, precision: str) -> None:
    torch.set_float32_matmul_precision(precision)
    plain = S4ConvD(5, 64, blocks=3, state_size=8, dropout=0.0, norm=norm)
    fused = S4ConvD(5, 64, blocks=3, state_size=8, dropout=0.0, norm=norm, kernel="fused")
    fused.load_state_dict(plain.state_dict())
    x = torch.randn(6, 20, 5)
    outcomes = []
    for network in (plain, fused):
        y = network(x)
        y.square().sum().backward()
        outcomes.append({"y": y.detach()} | {n: p.grad for n, p in network.named_parameters()})
    for name, expected in outcomes[0].items():
        torch.testing.assert_close(outcomes[1][name], expected, rtol=1e-4, atol=1e-5, msg=name)


def test_dropout_is_on_in_training_alone() -> None:
    network = S4ConvD(4, 64, blocks=2, state_size=8, dropout=0.5, kernel="fused")
    x = torch.randn(3, 12, 4)
    assert not torch.equal(network(x), network(x))
    still = copy.deepcopy(network).eval()
    assert torch.equal(still(x), still(x))
