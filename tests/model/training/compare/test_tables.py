"""The text of a comparison: what stands in its cells, and what is said where nothing can."""

from typing import Any

import pytest

from model.training.compare import tables
from tests.model.training.compare.small_record import (
    NAIVE,
    PYTORCH,
    hidden,
    kernel,
    on_a_cpu,
    on_a_gpu,
    without,
)


def block(record: dict[str, Any], start: str) -> str:
    """The paragraph that begins so."""
    (found,) = (each for each in tables.text(record).split("\n\n") if each.startswith(start))
    return found


def rows(record: dict[str, Any], start: str) -> dict[str, str]:
    """Its lines of cells with a space between, by their first word."""
    lines = (line.split() for line in block(record, start).splitlines())
    return {words[0]: " ".join(words[1:]) for words in lines}


def told(text: str) -> str:
    """Without its line breaks."""
    return " ".join(text.split())


def the_studys(record: dict[str, Any]) -> dict[str, Any]:
    """The record, with the four kernels of the study behind the others."""
    added = {"coalesced": [0.5] * 3, "warp_tiled": [0.4] * 3}
    record["kernels"] += [kernel(name, PYTORCH, losses) for name, losses in added.items()]
    return record


def test_table_2() -> None:
    """Another order of the paths, a total without one of them, or a speed-up in its place."""
    found = rows(on_a_gpu(), "Table II:")
    assert found["naive"] == "6.000 12.00 40.00 60.00 100.00 0.7 1.00x 1.00x"
    assert found["shared"] == "5.000 5.000 10.00 20.00 60.00 0.42 3.00x 1.67x"
    assert found["pytorch"] == "3.000 9.000 * 12.00 48.00 0.336 5.00x 2.08x"
    assert len({len(line) for line in block(on_a_gpu(), "Table II:").splitlines()[1:6]}) == 1
    notes = told(block(on_a_gpu(), "Table II:"))
    assert "* both gradients in one go, which cannot be told apart." in notes
    assert "Medians by CUDA events" in notes
    assert "Speed-ups are over naive. An epoch is 7 steps" in notes
    assert "differ by 44% at most" in notes  # 90 to 130 ms


def test_the_mark_of_both_gradients_is_explained_where_it_stands() -> None:
    assert "*" not in tables.text(without(on_a_gpu(), "pytorch"))


def test_table_3() -> None:
    """A share of another path's ceiling, or a rate in another path's column."""
    found = rows(on_a_gpu(), "Table III:")
    assert found["naive"] == "20 50% 10 25% 3 10% -"
    assert found["pytorch"] == "40 100% - - 20 40%"
    assert found["ceiling"] == "40 copy 40 copy 30 read 50 add"
    table = block(on_a_gpu(), "Table III:")
    assert "about twice as many: halve its rates to compare." in told(table)
    columns = {len(line) for line in table.splitlines()[1:6]}
    assert len(columns) == 1
    alone = rows(without(on_a_gpu(), "pytorch"), "Table III:")
    assert alone["naive"] == "20 50% 10 25% 3 10%"


def test_a_cpu_has_no_ceilings_and_says_so() -> None:
    text = told(tables.text(on_a_cpu()))
    assert "Times are the host's; no ceilings are measured on a CPU." in text
    assert "its share of the ceiling" not in text
    assert "Memory is measured on a GPU alone." in text
    assert "fast_p needs the operator measured on its own, on a GPU." in text
    assert rows(on_a_cpu(), "Table III:")["naive"] == "20 10 3 -"
    assert rows(on_a_cpu(), "Throughput")["naive"] == "10,000 - 2.5e-01 0 - - -"


def test_a_gpu_too_small_for_the_operator_is_no_cpu() -> None:
    text = told(tables.text(on_a_gpu() | {"operator": None, "fma": None}))
    assert "The operator was not measured on its own: there are no ceilings." in text
    assert "CPU" not in text
    assert "fast_p needs the operator measured on its own" in text


def test_memory_losses_and_fast_p() -> None:
    record = on_a_gpu()
    record["kernels"][1]["repeat"] = 0.002
    found = rows(record, "Throughput")
    assert found["naive"] == "10,000 1.50 2.5e-01 0 0.00 0.00 0.00"
    assert found["shared"] == "16,667 1.50 1.0e-01 2.0e-03 0.67 0.67 0.33"
    assert found["pytorch"] == "20,833 1.50 reference 0 - - -"
    notes = told(block(record, "Throughput"))
    assert "of a step's loss from that of pytorch; repeat: from that of the same kernel" in notes
    assert "fast_p: the share of the operator's three paths" in notes
    alone = told(block(without(on_a_gpu(), "pytorch"), "Throughput"))
    assert "from that of naive" in alone
    assert "fast_p needs pytorch and a kernel to hold against it." in alone


def test_after_a_single_round_nothing_is_known_of_repeating() -> None:
    record = on_a_cpu() | {"rounds": 1}
    for each in record["kernels"]:
        each["summaries"], each["repeat"] = each["summaries"][-1:], None
    assert rows(record, "Throughput")["naive"] == "10,000 - 2.5e-01 - - - -"
    text = told(tables.text(record))
    assert "repeat: not known after a single round." in text
    assert "1 round of 3 steps" in text
    assert "rounds' own medians" not in text


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            on_a_cpu(),
            "60.0 ms of the step's 100.0 ms, 60%. If it took no time at all, the step would be "
            "2.5x as fast: that is Amdahl's limit, and no kernel can do more for the step. pytorch "
            "reaches 2.08x. Of its own step the convolution is 25%: what is left to gain there is "
            "1.33x.",
        ),
        (
            without(on_a_cpu(), "naive", "shared"),
            "be 1.33x as fast: that is Amdahl's limit, and no kernel can do more for the step.",
        ),
        (
            on_a_cpu() | {"kernels": on_a_cpu()["kernels"][::-1]},
            "and no kernel can do more for the step.",
        ),
        (
            without(on_a_cpu(), "naive"),
            "pytorch reaches 1.25x. Of its own step the convolution is 25%: what is left to gain "
            "there is 1.33x.",
        ),
        (hidden(on_a_cpu(), "pytorch"), "pytorch reaches 2.08x."),
        (
            hidden(on_a_cpu(), "naive"),
            "the convolution of naive could not be told from the rest of its step.",
        ),
    ],
)
def test_amdahl(record: dict[str, Any], expected: str) -> None:
    last = told(tables.text(record).split("\n\n")[-1])
    assert last.endswith(expected)


def test_more_than_amdahl_allows_is_explained() -> None:
    """The rest of a step differs from run to run, and a limit that was passed reads as an error."""
    record = on_a_cpu()
    record["kernels"] = [
        kernel("naive", NAIVE | {"operator": 10.0}, [1.0]),
        kernel("pytorch", PYTORCH, [1.0]),
    ]
    text = told(tables.text(record))
    assert "would be 1.11x as fast: that is Amdahl's limit" in text
    assert "pytorch reaches 2.08x, as the rest of its step took less time, too." in text


def test_the_study_stands_beside_its_own_four_kernels_only() -> None:
    """Its numbers beside another set, or ratios over another kernel than its own first."""
    assert "P100" not in tables.text(on_a_cpu())
    assert "P100" not in tables.text(without(the_studys(on_a_cpu()), "shared"))
    record = the_studys(on_a_cpu())
    record["kernels"].reverse()  # so that naive is not the baseline
    found = rows(record, "Beside the study")
    assert found["naive"] == "60.00 133.47 0.7 44.82 1.00x 1.00x 1.00x 1.00x"
    assert found["shared"] == "20.00 66.57 0.42 36.91 3.00x 2.00x 1.67x 1.21x"
    assert found["warp_tiled"] == "12.00 40.99 0.336 34.74 5.00x 3.26x 2.08x 1.29x"
    assert "pytorch" not in found
    found = rows(hidden(the_studys(on_a_cpu()), "shared"), "Beside the study")
    assert found["shared"] == "- 66.57 0.42 36.91 - 2.00x 1.67x 1.21x"


def test_hidden_paths_are_said() -> None:
    record = hidden(on_a_gpu(), "naive", "shared")
    found = rows(record, "Table II:")
    assert found["naive"] == "- - - - 100.00 0.7 - 1.00x"
    assert "naive, shared: the operator ran in compiled" in told(block(record, "Table II:"))
    record = hidden(on_a_gpu(), "naive", "shared", "pytorch")
    assert "Not known, as no kernel's paths have times." in block(record, "Table III:")


SLOW = NAIVE | {name: 1e4 * ms for name, ms in NAIVE.items()}
WIDE = [
    on_a_cpu() | {"device": {"name": "AMD EPYC 9B45 128-Core Processor of a long name " * 2}},
    on_a_gpu() | {"kernels": [kernel("warp_tiled", SLOW, [1.0, 1e-9], 99)]},
    the_studys(on_a_cpu()) | {"shape": {"batch": 2**24, "channels": 512, "length": 9, "taps": 9}},
    hidden(the_studys(on_a_gpu()), "naive", "shared", "coalesced", "warp_tiled", "pytorch"),
]


@pytest.mark.parametrize("record", WIDE)
def test_it_fits_a_terminal_and_shows_no_accident(record: dict[str, Any]) -> None:
    text = tables.text(record)
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert [word for word in ("nan", "None", "inf ", "[]") if word in text] == []


def test_wide_numbers_do_not_run_together() -> None:
    found = rows(WIDE[1], "Table II:")["warp_tiled"]
    assert found == "60,000 120,000 400,000 600,000 1,000,000 7,000 1.00x 1.00x"
