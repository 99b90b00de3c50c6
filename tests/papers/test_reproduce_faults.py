"""``otpt reproduce --go`` with bad input: one sentence each, the others continue, and the next call finishes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from oracles.command import run
from oracles.models.tiny import open_clip_local_dir
from rehearsal import files_of, write_dassl

from otpt.errors import OtptError
from otpt.methods.coop import learned_prompt
from otpt.prompts.learned import CocoopContext, CoopContext, MaplePrompts
from otpt.report.figures import draw
from otpt_papers.jobs import open_dataset

pytestmark = pytest.mark.filterwarnings("ignore:.* test images in .*were published")
SETS = ("eurosat", "dtd")
TABLES = ("table-02.md", "table-06.md")


@dataclass(frozen=True)
class Bed:
    """Two data sets with half a dozen images, a stand-in of ViT-B/16, and a context of CoOp."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def context(self) -> Path:
        return self.folder / "coop.pth.tar-50"

    def write_context(self, *shape: int) -> None:
        values = 0.02 * torch.randn(*shape, generator=torch.Generator().manual_seed(0))
        write_dassl(self.context, {"prompt_learner.ctx": values.half()})

    def go(self, *more: str) -> tuple[int, str, str]:
        """Run Tables 2 and 6 on the two sets."""
        open_dataset.cache_clear()
        words = ["reproduce", "paper", "--data", self.folder / "data", "--out", self.out, "--tables", "2", "6"]
        words += ["--datasets", *SETS, "--methods", "zero-shot", "coop+tpt", "--paper-backbone", "ViT-B/16"]
        words += ["--models", f"ViT-B/16=local-dir:{self.folder / 'vit'}", "--context", f"coop={self.context}"]
        return run(self.capsys, *words, "--limit", "2", "--views", "2", "--device", "cpu", "--no-cache", "--go", *more)

    def tables(self) -> list[str]:
        return sorted(path.name for path in (self.out / "tables").glob("*.md"))

    def rows(self) -> dict[Path, bytes]:
        """Return the files of rows that the runs hold."""
        return {path: path.read_bytes() for path in self.out.rglob("0*.parquet")}


def write_set(folder: Path, name: str) -> None:
    for place, data in files_of(name).items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@pytest.fixture
def bed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Bed]:
    for name in SETS:
        write_set(tmp_path / "data", name)
    open_clip_local_dir(tmp_path / "vit", "vit")
    made = Bed(tmp_path, capsys)
    made.write_context(4, 64)
    yield made
    open_dataset.cache_clear()


def finishes(bed: Bed, before: dict[Path, bytes]) -> None:
    """Check that the next call makes the rest, and that earlier rows stay as they were."""
    code, out, err = bed.go()
    assert (code, bed.tables()) == (0, list(TABLES)), (out, err)
    after = bed.rows()
    assert all(after[path] == data for path, data in before.items())
    assert "Missing" not in out


def test_a_checkpoint_of_other_classes(bed: Bed) -> None:
    bed.write_context(5, 4, 64)  # one context for each of five classes
    code, out, err = bed.go()
    assert (code, bed.tables()) == (3, [TABLES[0]])
    (failure,) = [line for line in err.splitlines() if "failed, the other commands continue" in line]
    assert "5" in failure
    assert "for Table 6" in out
    assert "Table 2" not in out.partition("Missing:")[2]
    before = bed.rows()
    assert before
    bed.write_context(4, 64)
    finishes(bed, before)


def test_half_a_data_set(bed: Bed) -> None:
    images = sorted((bed.folder / "data" / "eurosat").rglob("test_*.jpg"))
    taken = {path: path.read_bytes() for path in images[::2]}
    for path in taken:
        path.unlink()
    code, out, _ = bed.go()
    missing = out.partition("Missing:")[2]
    assert (code, bed.tables()) == (3, list(TABLES)), "of the other set"
    assert "eurosat: " in missing
    assert "otpt datasets get eurosat" in missing
    assert "dtd: " not in missing
    before = bed.rows()
    assert {path.relative_to(bed.out).parts[3] for path in before} == {"dtd"}
    for path, data in taken.items():
        path.write_bytes(data)
    finishes(bed, before)


def fill_disk(monkeypatch: pytest.MonkeyPatch, is_full: Callable[[Path], bool]) -> None:
    """Let files at some places fail as on a full disk."""
    real = os.replace

    def replace(source: str | Path, target: str | Path) -> None:
        if Path(source).suffix == ".tmp" and is_full(Path(target)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)


@pytest.mark.parametrize(
    ("full", "made"),
    [
        (lambda path: "coop" in path.parts, [TABLES[0]]),
        (lambda path: path.name == TABLES[0], [TABLES[1]]),
        (lambda path: path.name == "index.html", list(TABLES)),
    ],
    ids=["rows", "table", "index"],
)
def test_a_full_disk(bed: Bed, monkeypatch: pytest.MonkeyPatch, full: Callable[[Path], bool], made: list[str]) -> None:
    with monkeypatch.context() as patched:
        fill_disk(patched, full)
        code, out, err = bed.go()
    assert (code, bed.tables()) == (3, made)
    assert os.strerror(errno.ENOSPC) in out.partition("Missing:")[2], (out, err)
    assert not list(bed.out.rglob("*.tmp"))
    finishes(bed, bed.rows())


def test_an_earlier_table_survives_a_full_disk(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bed.go()[0] == 0
    before = {path: path.read_bytes() for path in (bed.out / "tables").iterdir()}
    with monkeypatch.context() as patched:
        fill_disk(patched, lambda path: path.parent.name == "tables")
        assert bed.go()[0] == 3
    assert {path: path.read_bytes() for path in (bed.out / "tables").iterdir()} == before


@pytest.mark.parametrize("error", [ZeroDivisionError("a defect"), MemoryError()], ids=repr)
def test_a_defect_in_one_figure(bed: Bed, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(kind: str, *arguments: Any, **options: Any) -> Figure:
        if kind == "cosine":
            raise error
        return draw(kind, *arguments, **options)

    def go() -> tuple[int, str, str]:
        words = ["reproduce", "paper", "--data", bed.folder / "data", "--out", bed.out, "--figures", "4", "6", "--go"]
        words += ["--datasets", "flowers102", "--methods", "c-tpt", "o-tpt", "--views", "2", "--limit", "2"]
        words += ["--models", f"ViT-B/16=local-dir:{bed.folder / 'vit'}", "--device", "cpu", "--no-cache"]
        return run(bed.capsys, *words)

    write_set(bed.folder / "data", "flowers102")
    with monkeypatch.context() as patched:
        patched.setattr("otpt.cli.plot.draw", fail)
        code, out, _ = go()
    missing = out.partition("Missing:")[2]
    assert (code, type(error).__name__ in missing, "Figure 4" in missing, "Figure 6" in missing) == (
        3,
        True,
        True,
        False,
    )
    assert {path.name for path in (bed.out / "figures").iterdir()} == {"figure-06.pdf", "figure-06.png"}
    assert go()[0] == 0
    assert len(list((bed.out / "figures").iterdir())) == 4


def test_a_damaged_run_costs_its_own_tables(bed: Bed) -> None:
    assert bed.go()[0] == 0
    config = next(bed.out.rglob("coop/config.json"))
    whole = config.read_bytes()
    config.write_bytes(whole[: len(whole) // 2])
    code, out, _ = bed.go()
    missing = out.partition("Missing:")[2]
    assert (code, "Table 6" in missing, "Table 2" in missing) == (3, True, False)
    config.write_bytes(whole)
    finishes(bed, bed.rows())


@pytest.mark.parametrize("kind", [CoopContext, CocoopContext, MaplePrompts])
def test_a_missing_checkpoint_names_a_trainer_that_exists(
    kind: type[CoopContext | CocoopContext | MaplePrompts], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OtptError, match="context=FILE") as caught:
        learned_prompt(kind, None)
    words = str(caught.value)
    if "'otpt train" in words:
        command = words.partition("'otpt ")[2].partition("'")[0]
        assert run(capsys, *command.split(), "--help")[0] == 0
        assert command == f"train {kind.kind}"
