"""The published network's step, as it is timed."""

import sys

import pytest
import torch

from model import bench
from model.published import PublishedS4ConvD
from model.s4convd import S4ConvD


def test_a_step_trains_the_published_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights and windows for each kernel, and a step that changes all of them."""
    networks = []

    def remembered(*args, **kwargs):
        networks.append(bench_network(*args, **kwargs))
        return networks[-1]

    bench_network = bench.S4ConvD
    monkeypatch.setattr(bench, "S4ConvD", remembered)
    pytorch = bench.Contender("pytorch", "highest")
    step = bench.training_step(pytorch, 3, torch.device("cpu"))
    bench.training_step(pytorch, 3, torch.device("cpu"))
    stepped, fresh = (dict(network.named_parameters()) for network in networks)
    assert sum(p.numel() for p in fresh.values()) == 34_049  # of the default job, with 4 features
    assert all(torch.equal(p, stepped[name]) for name, p in fresh.items())
    step()
    unmoved = [name for name, p in fresh.items() if stepped[name].grad is None]
    assert unmoved == []
    assert not torch.equal(fresh["decoder.weight"], stepped["decoder.weight"])


@pytest.mark.parametrize("norm", [False, True])
def test_the_published_form_is_the_same_function(norm: bool) -> None:
    """What the other rows are compared with is the same network, and no easier one to beat."""
    plain, published = (
        kind(4, 16, 3, 8, dropout=0.0, norm=norm) for kind in (S4ConvD, PublishedS4ConvD)
    )
    published.load_state_dict(plain.state_dict())
    x = torch.randn(5, 20, 4)
    for network in (plain, published):
        network(x).square().sum().backward()
    torch.testing.assert_close(published(x), plain(x), rtol=1e-5, atol=1e-6)
    for (name, found), expected in zip(
        published.named_parameters(), plain.parameters(), strict=True
    ):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_who_takes_part() -> None:
    names = ["published", "naive", "fused"]
    found = bench.contenders(names, torch.device("cuda"))
    assert [of.label for of in found] == [
        "published",
        "published, TF32",
        "naive",
        "fused, TF32",
        "fused, TF32, graph",
    ]
    assert [of.label for of in bench.contenders(names, torch.device("cpu"))] == names


def test_on_a_cpu_it_prints_a_row_for_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--batch=4", "--device=cpu"])
    bench.main()
    where, head, *rows = capsys.readouterr().out.splitlines()
    assert where.endswith("4 windows")
    assert head.split()[:4] == ["kernel", "ms", "a", "step"]
    assert [row.split()[0] for row in rows] == ["published", "pytorch"]
    assert rows[-1].split()[5:] == ["1.00x", "-"]


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["bench", "--device=cuda"])
    with pytest.raises(SystemExit) as end:
        bench.main()
    assert end.value.code == 2
    assert capsys.readouterr().err.strip() == "error: there is no NVIDIA GPU that PyTorch sees"


@pytest.mark.gpu
def test_on_a_gpu_it_prints_a_row_for_each_kernel(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--batch=64", "--kernels=naive,warp_tiled"])
    bench.main()
    rows = capsys.readouterr().out.splitlines()
    assert [row[:24].strip() for row in rows[2:]] == [
        "naive",
        "warp_tiled",
        "warp_tiled, TF32",
        "warp_tiled, TF32, graph",
    ]
    assert rows[-1].split()[7] == "1.00x"
