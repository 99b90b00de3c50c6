"""The benchmark of learned prompts in small: two sets of two classes, few numbers; its table and its restart."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
from oracles.models.tiny import open_clip_local_dir
from PIL import Image

from benchmarks import learned_prompts as bench
from otpt.data import Dataset
from otpt.prompts.learned import read_learned
from otpt.runs import Run, score_run

NAMES = ("cat", "sea")


def image(seed: int) -> Image.Image:
    """Blobs whose colour tells the class (seed mod 2)."""
    values = np.random.default_rng(seed).integers(0, 120, (5, 5, 3), dtype=np.uint8)
    values[..., seed % 2] += 120
    return Image.fromarray(values).resize((40, 40), Image.Resampling.BICUBIC)


def made(name: str, *, split: str = "test") -> Dataset:
    first = 1000 * (split == "train") + 100 * (name == "emoji/food")
    count = 4 if split == "train" else 8
    return Dataset(name, NAMES, [f"{split}/{i}" for i in range(count)], [i % 2 for i in range(count)],
                   lambda i: image(first + i))  # fmt: skip


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(bench, "load_dataset", made)
    monkeypatch.setattr(bench, "SETS", ("emoji/animals", "emoji/food"))
    monkeypatch.setattr(bench, "PAGE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text("above\n<!-- learned-prompts -->\nold\n<!-- /learned-prompts -->\nbelow\n")
    open_clip_local_dir(tmp_path / "tiny")
    return [str(tmp_path / "work"), "--backbone", str(tmp_path / "tiny"), "--images", "3", "--views", "6",
            "--coop", "shots=1", "epochs=2", "crops=1", "--maple", "shots=1", "epochs=2", "batch=2"]  # fmt: skip


def test_two_processes_and_the_table_of_both(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for own in ("animals", "food"):
        bench.main([*command, "--sets", own])
        said = capsys.readouterr().out
        assert (said.count("learned coop"), said.count("learned maple"), said.count("measured ")) == (3, 3, 6)
    one = tmp_path / "work" / "prompts" / "coop-emoji-food-seed2.safetensors"
    before, kept = one.stat().st_mtime_ns, read_learned(one).state()["ctx"]
    bench.main([*command, "--write"])
    said = capsys.readouterr().out
    assert "learned coop" not in said
    assert one.stat().st_mtime_ns == before
    other = read_learned(one.with_name("coop-emoji-food-seed1.safetensors")).state()["ctx"]
    assert not bool((kept == other).all()), "each seed has shots of its own"

    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert page.startswith("above\n<!-- learned-prompts -->\nBackbone `")
    assert "With tuning, 6 views, on 3 images of each test split:" in page
    assert page.endswith("<!-- /learned-prompts -->\nbelow\n")
    assert "CoOp from 1 shots in 2 epochs" in page
    assert "old" not in page
    scores, whole = {}, {}
    for name in ("animals", "food"):
        for seed in range(3):
            run = Run(tmp_path / "work" / "runs" / f"emoji-{name}-seed{seed}")
            assert sum(item.images for item in run.items()) == 3
            untuned = Run(tmp_path / "work" / "untuned" / f"emoji-{name}-seed{seed}")
            assert sum(item.images for item in untuned.items()) == 8
            for found, source in ((scores, run), (whole, untuned)):
                for score in score_run(source):
                    assert score.metrics is not None
                    found[name, seed, score.method] = 100 * score.metrics.ece
    first, second = page.split("With tuning")
    shown = [(scores, second, method) for method in bench.METHODS] + [(whole, first, m) for m in bench.UNTUNED]
    for held, part, method in shown:
        cells = re.findall(rf"^\| `{re.escape(method)}` \| (.*) \|$", part, re.MULTILINE)[1].split(" | ")
        by_seed = [mean(held[name, seed, method] for name in ("animals", "food")) for seed in range(3)]
        expected = [mean(held[name, seed, method] for seed in range(3)) for name in ("animals", "food")]
        assert cells[:2] == [f"{value:.2f}" for value in expected]
        assert cells[2] == f"{mean(by_seed):.2f} ± {stdev(by_seed):.2f}"


def test_a_folder_serves_one_choice_of_numbers(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    bench.main([*command, "--sets", "food", "--seeds", "0"])
    assert "±" not in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"was begun with views 6, not 7: take another folder"):
        bench.main([*command, "--views", "7"])
    with pytest.raises(SystemExit, match=r"'depth=2' was given; expected NAME=VALUE with one of shots"):
        bench.main([*command, "--maple", "depth=2"])
    with pytest.raises(SystemExit):
        bench.main([*command, "--sets", "food", "--write"])
    assert "--write takes the table of all sets and seeds" in capsys.readouterr().err
