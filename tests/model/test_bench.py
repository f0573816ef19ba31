"""The published network's step, as it is timed."""

import sys

import pytest
import torch

from model import bench


def test_a_step_trains_the_published_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights and windows for each kernel, and a step that changes all of them."""
    networks = []

    def remembered(*args, **kwargs):
        networks.append(bench_network(*args, **kwargs))
        return networks[-1]

    bench_network = bench.S4ConvD
    monkeypatch.setattr(bench, "S4ConvD", remembered)
    step = bench.training_step("pytorch", 3, torch.device("cpu"))
    bench.training_step("pytorch", 3, torch.device("cpu"))
    stepped, fresh = (dict(network.named_parameters()) for network in networks)
    assert sum(p.numel() for p in fresh.values()) == 199_425  # as published
    assert all(torch.equal(p, stepped[name]) for name, p in fresh.items())
    step()
    unmoved = [name for name, p in fresh.items() if stepped[name].grad is None]
    assert unmoved == []
    assert not torch.equal(fresh["decoder.weight"], stepped["decoder.weight"])


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["bench"])
    with pytest.raises(SystemExit) as end:
        bench.main()
    assert end.value.code == 2
    assert (
        capsys.readouterr().err.strip() == "error: this needs an NVIDIA GPU, and PyTorch sees none"
    )


@pytest.mark.gpu
def test_on_a_gpu_it_prints_a_row_for_each_kernel(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--batch=64", "--kernels=naive,warp_tiled"])
    bench.main()
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows[2:]] == ["naive", "warp_tiled"]
    assert rows[-1].split()[4] == "1.00x"
