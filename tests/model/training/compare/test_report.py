"""The report on a comparison: one file, all of its numbers, and words for what is missing."""

import json
import re
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from PIL import Image

from cuda_ops import roofline
from model.training.compare import study, tables
from model.training.compare.figures import figures
from model.training.compare.report import html, main
from model.training.compare.words import amdahl, headline, number, speed_up
from tests.model.training.compare.records import KERNELS, cpu_record, gpu_record, without_paths
from tests.model.training.parsed import Parsed


def one_hidden() -> dict[str, Any]:
    """PyTorch first, in compiled code, after a single round."""
    record = gpu_record("pytorch", "naive", "warp_tiled") | {"rounds": 1}
    without_paths(record["kernels"][0])
    for kernel in record["kernels"]:
        kernel |= {"repeat": None, "summaries": kernel["summaries"][:1]}
    return record


def in_float64() -> dict[str, Any]:
    record = gpu_record("naive", "pytorch") | {"dtype": "float64"}
    record["operator"]["dtype"] = "float64"
    return record


def with_the_fastest_step() -> dict[str, Any]:
    """Two that are no convolution alone, one of them without times of its paths."""
    record = gpu_record("pytorch", "naive", "warp_tiled")
    published, fused, _ = record["kernels"]
    published["name"], fused["name"], fused["tf32"] = "published", "fused", True
    without_paths(fused)
    rows = [row for row in record["operator"]["rows"] if row["name"] == "warp_tiled"]
    return record | {"operator": record["operator"] | {"rows": rows}}


@cache
def page(make: Callable[[], dict[str, Any]] = gpu_record) -> str:
    return html(make())


@cache
def parsed(make: Callable[[], dict[str, Any]] = gpu_record) -> Parsed:
    return Parsed(page(make))


MAKERS = [gpu_record, cpu_record, one_hidden, in_float64, with_the_fastest_step]


# -- one file ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", MAKERS)
def test_the_page_needs_nothing_else(make: Callable[[], dict[str, Any]]) -> None:
    """A font, script or picture from somewhere else: the report is empty on a train."""
    found = parsed(make)
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in found.tags}
    assert all(link.startswith("https://arxiv.org/abs/") for link in found.values("a", "href"))
    assert all(source.startswith("data:image/png;") for source in found.values("img", "src"))
    style = page(make).split("<style>")[1].split("</style>")[0]
    assert not re.search(r"url\(|@import|//", style)
    assert not re.search(r'\son\w+="', page(make))


@pytest.mark.parametrize("make", MAKERS)
def test_no_number_is_missing_without_a_word(make: Callable[[], dict[str, Any]]) -> None:
    assert not re.search(r"\b(nan|NaN|inf|Infinity|None|null)\b", parsed(make).text)
    assert all(cell.strip() for table in parsed(make).tables for row in table[1:] for cell in row)


@pytest.mark.parametrize("make", MAKERS)
def test_tf32_is_named_where_it_was(make: Callable[[], dict[str, Any]]) -> None:
    """Its losses are apart by more than rounding to float32 explains."""
    said = "keeps 10 bits of each factor: fused." in parsed(make).text
    assert said == (make is with_the_fastest_step)
    assert said == ("each factor: fused." in " ".join(tables.text(make()).split()))


def test_pictures_are_sharp_and_told() -> None:
    found = parsed()
    pictures = [of for tag, of in found.tags if tag == "img"]
    assert len(pictures) == 4
    for of in pictures:
        with urlopen(of["src"] or "") as data:  # which stands in the page
            image = Image.open(BytesIO(data.read()))
        assert image.size == (2 * int(of["width"] or 0), 2 * int(of["height"] or 0))
        assert image.size[0] == 1120
        assert len(of["alt"] or "") > 20
    captions = sum(tag == "figcaption" for tag, _ in found.tags)
    assert captions == 4
    assert sum(tag == "img" for tag, _ in parsed(cpu_record).tags) == 2


def test_text_from_the_record_is_escaped() -> None:
    record = gpu_record("naive", "pytorch")
    nasty = "<script>alert('1')</script> & \"quoted\""
    record["device"]["name"] = f"H200 {nasty}"
    record["command"] = f"train.py compare --data.root {nasty}"
    record["settings"] = {f"data.{nasty}": nasty}
    record["commit"] = nasty
    record["versions"]["torch"] = nasty
    found = Parsed(html(record))
    assert "script" not in {tag for tag, _ in found.tags}
    assert found.text.count(nasty) >= 6


# -- what it says ------------------------------------------------------------------------------


def test_the_result_in_one_sentence() -> None:
    sentence = (
        "warp_tiled makes the convolution 64x and the training step 6.1x faster than naive "
        "on an NVIDIA H200"
    )
    assert f"<h1>{sentence}.</h1>" in page()
    assert f"<title>{sentence}</title>" in page()


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (cpu_record(), "A training step with pytorch takes 76.2 ms on an AMD EPYC 9B45"),
        (
            one_hidden(),
            "warp_tiled makes the training step 1.2x faster than pytorch on an NVIDIA H200",
        ),
        (
            gpu_record("warp_tiled", "naive"),
            "No other kernel trains faster than warp_tiled on an NVIDIA H200",
        ),
        (
            gpu_record("naive", "shared") | {"device": {"name": "Tesla P100"}},
            "shared makes the convolution 9.4x and the training step 4.2x faster than naive "
            "on a Tesla P100",
        ),
    ],
)
def test_headlines(record: dict[str, Any], sentence: str) -> None:
    assert headline(record, figures(record)) == sentence


def test_a_headline_without_a_difference() -> None:
    """1x faster."""
    record = gpu_record("naive", "shared")
    record["kernels"][1]["summaries"] = deepcopy(record["kernels"][0]["summaries"])
    for summary in record["kernels"][1]["summaries"]:
        summary["ms"]["step"]["ms"] *= 0.99
    found = headline(record, figures(record))
    assert found == "shared trains about as fast as naive on an NVIDIA H200"


def test_what_was_run() -> None:
    text = parsed().text
    for told in (
        "NVIDIA H200, 132 multiprocessors, 139.80 GiB, driver 580.159.04",
        "16,384 windows of 48 readings, 128 channels, filters of 48 taps, 4 blocks, float32",
        "40 training steps of each kernel, 3 rounds, in turns",
        "torch 2.11.0+cu130, cuda 13.0",
        "ff4d2b5, 2026-11-29",
        "train.py compare --kernels naive,coalesced,shared,warp_tiled,pytorch --steps 40",
    ):
        assert told in text
    settings = parsed().table("option", "value")
    assert settings["data.batch_size"] == ["16384"]
    assert settings["data.root"] == ["not set"]
    assert "unknown, 2026-11-29" in parsed(cpu_record).text


def test_the_step() -> None:
    parts = parsed().table("data wait", "rest")
    assert parts["naive"] == ["0.210", "6.35", "6.28", "152", "0.350", "29.2", "85%"]
    training = parsed().table("windows a second", "peak memory")
    assert training["warp_tiled"] == [
        "31.90", "31.77 to 32.03", "6.11x", "513,605", "3.83", "17.50 GiB",
    ]  # fmt: skip
    paths = parsed().table("path", "effective GB/s")
    assert paths["warp_tiled"] == ["weight gradient", "0.875", "3,683", "88%"]


def test_amdahl_in_words() -> None:
    text = amdahl(figures(gpu_record()))
    assert "takes 165.0 ms of the step's 194.8 ms, 85%" in text
    assert "6.54x as fast" in text
    assert "warp_tiled reaches 6.11x. Of its own step the convolution is 8%" in text
    assert text in parsed().text
    quicker = gpu_record("naive", "warp_tiled")
    for summary in quicker["kernels"][1]["summaries"]:
        summary["ms"]["step"]["ms"] = 20.0
    assert "the rest of its step took less time" in amdahl(figures(quicker))


def test_the_studys_tables() -> None:
    """Its numbers, as it prints them, and ours below."""
    first, second = (table for table in parsed().tables if table[0][1] == "forward")
    assert first[2:6] == [
        ["naive", "29.97", "30.25", "73.26", "133.47", "1x", "44.82", "1x"],
        ["coalesced", "28.23", "28.78", "49.64", "106.65", "1.25x", "40.31", "1.11x"],
        ["shared", "16.36", "16.03", "34.17", "66.57", "2x", "36.91", "1.21x"],
        ["warp_tiled", "10.46", "10.61", "19.91", "40.99", "3.26x", "34.74", "1.29x"],
    ]
    assert [row[0] for row in first[7:]] == list(KERNELS)
    assert first[10][1:] == ["0.214", "0.215", "0.219", "0.648", "63.7x", "3.83", "6.11x"]
    # 805 MB over 10.46 ms; the study counts twice as much for the three.
    assert second[5] == [
        "warp_tiled", "77.0", "75.9", "40.4", "58.9", "8%", "115 / 2 = 57.5",
    ]  # fmt: skip
    assert second[7] == ["naive", "507", "513", "21.1", "58.6", "1%", "-"]
    assert second[10][1:6] == ["3,759", "3,752", "3,683", "3,731", "88%"]
    assert "halved" in parsed().text
    assert "The work differs" not in parsed().text


def test_other_work_than_the_studys_is_said() -> None:
    assert "256x32x48x48 in float32 here, 16384x128x48x48 in float32 there" in (
        parsed(cpu_record).text
    )
    assert "16384x128x48x48 in float64 here" in parsed(in_float64).text


def test_the_studys_halved_rates_are_those_of_its_times() -> None:
    """A number of either table is wrong: what it counts is about twice the compulsory bytes."""
    for row in study.ROWS[1:]:
        assert row.table_iii_gb_s is not None
        bytes_of_all = 6 * 16384 * 128 * 48 * 4
        assert row.table_iii_gb_s / 2 == pytest.approx(bytes_of_all / row.total_ms / 1e6, rel=0.1)
        assert sum(row.ms) == pytest.approx(row.total_ms, abs=0.02)


def test_every_path_has_its_verdict() -> None:
    record = gpu_record()
    lines = roofline.markdown(record | {"runs": [record["operator"]]}).splitlines()
    sentences = [line.split(" | ")[-1].rstrip(" |") for line in lines if "times the floor" in line]
    assert len(sentences) == 12
    assert all(f"{sentence}." in parsed().text for sentence in sentences)
    assert parsed().text.count("times the floor of") == 12
    assert "no verdict" in parsed(in_float64).text
    assert "times the floor of" not in parsed(in_float64).text


def test_agreement_and_fast_p() -> None:
    apart = parsed().table("from pytorch")
    assert apart["naive"] == ["3.0e-07", "none"]
    assert apart["pytorch"] == ["the reference", "none"]
    assert parsed(one_hidden).table("from pytorch")["naive"][1] == "one round only"
    fast = parsed().table("p = 2")
    assert fast["warp_tiled"] == ["100%", "100%", "0%"]
    assert fast["naive"] == ["0%", "0%", "0%"]
    assert "pytorch" not in fast


def test_what_is_missing_is_said() -> None:
    text = parsed(cpu_record).text
    assert "was not measured on its own" in text
    assert "Peak memory is measured on a GPU only" in text
    assert "With one kernel there is nothing to compare" in text
    assert parsed(cpu_record).table("path", "effective GB/s")["pytorch"][-1] == "not measured"
    hidden = parsed(one_hidden)
    assert hidden.table("data wait", "rest")["pytorch"][1:4] == ["not told apart"] * 3
    assert "What the step could gain at the most is not known" in hidden.text


@pytest.mark.parametrize(
    ("value", "words"), [(0.2144, "0.214"), (15, "15.0"), (194.8, "195"), (4238.1, "4,238")]
)
def test_numbers(value: float, words: str) -> None:
    assert number(value) == words


@pytest.mark.parametrize(
    ("value", "words"), [(1, "1x"), (62.43, "62.4x"), (0.193, "0.193x"), (1234.5, "1,234x")]
)
def test_ratios(value: float, words: str) -> None:
    assert speed_up(value) == words


# -- the command -------------------------------------------------------------------------------


def test_a_record_is_rendered_again(tmp_path: Path) -> None:
    record, report = tmp_path / "compare.json", tmp_path / "report.html"
    record.write_text(json.dumps(gpu_record()))
    assert main([str(record), str(report)]) == 0
    assert report.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize(
    "content", [None, "", "{}", "[]", "3", '"text"', '{"kernels": []}', '{"kernels": [3]}']
)
def test_a_file_that_holds_no_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    record, report = tmp_path / "compare.json", tmp_path / "report.html"
    if content is not None:
        record.write_text(content)
    assert main([str(record), str(report)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert str(record) in told.err
    assert told.err.count("\n") == 1
    assert not report.exists()


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "compare.json"
    record.write_text(json.dumps(cpu_record()))
    assert main([str(record), str(tmp_path / "nowhere" / "report.html")]) == 2
    assert "nowhere" in capsys.readouterr().err
