"""The examples of README, CONTRIBUTING and documentation run, without a download.

Python blocks of a page run one after the other in one namespace; where a text block follows, it is what they print.
Lines of bash blocks that start with ``otpt`` run as well, evaluations on a few images. The backbones they name are
replaced by a tiny random one.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import warnings
from pathlib import Path

import pytest
from oracles.models.tiny import open_clip_local_dir, open_clip_safetensors, openai_archive
from oracles.pages.docs_pages import DOCS, PAGES, ROOT, RUN_ELSEWHERE, blocks
from PIL import Image, ImageDraw

from otpt.cli import main

pytestmark = pytest.mark.slow

NAMED = ("ViT-B-16/openai", "random:ViT-B-32")


def _commands() -> list[tuple[str, str, str | None]]:
    found = []
    for page in PAGES:
        for block in blocks(page, "bash"):
            lines = [line for line in block.source.splitlines() if line.startswith("otpt ")]
            found += [(page.name, line, block.output if len(lines) == 1 else None) for line in lines]
    return found


COMMANDS = _commands()


def _draw_boat() -> Image.Image:
    """A boat on the sea, 480×360."""
    image = Image.new("RGB", (480, 360), (135, 190, 235))
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 240, 480, 360), fill=(30, 90, 150))
    pen.polygon([(230, 60), (230, 225), (330, 225)], fill=(245, 245, 240))
    pen.polygon([(120, 235), (350, 235), (310, 280), (160, 280)], fill=(110, 70, 40))
    return image


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the examples name."""
    folder = tmp_path_factory.mktemp("docs")
    image = _draw_boat()
    image.save(folder / "photo.jpg")
    (folder / "images").mkdir()
    image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(folder / "images" / "other.png")
    (folder / "classes.txt").write_text("cat\ndog\nred panda\n", encoding="utf-8")
    (toml,) = blocks(DOCS / "methods.md", "toml")
    assert toml.title == 'title="mine.toml"'
    (folder / "mine.toml").write_text(toml.source, encoding="utf-8")
    (attributes,) = blocks(DOCS / "methods.md", "json")
    (folder / "attributes.json").write_text(attributes.source, encoding="utf-8")
    own = [block.source for block in blocks(ROOT / "CONTRIBUTING.md", "python") if "@otpt." in block.source]
    (folder / "mine.py").write_text("\n".join(own), encoding="utf-8")
    open_clip_local_dir(folder / "tiny")
    openai_archive(folder / "ViT-B-16.pt")
    open_clip_safetensors(folder / "weights.safetensors")
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _forget(registries: None) -> None:
    """Functions that a page registers are removed after it: two pages may use one name."""


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in RUN_ELSEWHERE], ids=lambda p: p.name)
def test_python_blocks(page: Path, folder: Path) -> None:
    namespace: dict[str, object] = {"__name__": page.stem}
    for block in blocks(page, "python"):
        source = block.source
        for name in NAMED:
            source = source.replace(f'"{name}"', repr(str(folder / "tiny")))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            # the temperature of an example with three images may end at its bound, and says so
            warnings.simplefilter("ignore")
            exec(compile(source, page.name, "exec"), namespace)
        if block.output is not None:
            assert printed.getvalue() == block.output, block.source


def _arguments(line: str) -> list[str]:
    arguments = shlex.split(line, comments=True)[1:]
    arguments = ["tiny" if word in NAMED else word for word in arguments]
    if arguments[0] == "predict":
        arguments += [] if "--backbone" in arguments else ["--backbone", "tiny"]
        arguments += ["--device", "cpu"]
    if arguments[0] == "evaluate":
        views = [] if "--budget" in arguments else ["--views", "4"]
        arguments += ["--limit", "2", *views, "--device", "cpu", "--no-cache"]
    return arguments


@pytest.mark.parametrize(("page", "line", "output"), COMMANDS, ids=[f"{page}:{line}" for page, line, _ in COMMANDS])
def test_otpt_commands(
    page: str, line: str, output: str | None, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_arguments(line)) == 0
    printed = capsys.readouterr().out
    assert printed.strip()
    if output is not None:  # numbers and labels are another model's; what is shown is not
        title, header, *ranks = output.splitlines()
        found = printed.splitlines()
        assert found[0].strip() == title
        assert found[1].split() == header.split()
        assert [row.split()[0] for row in found[2 : 2 + len(ranks)]] == [row.split()[0] for row in ranks]


def test_there_are_commands_to_run() -> None:
    assert len(COMMANDS) >= 12
    assert {page for page, _, _ in COMMANDS} >= {"README.md", "quick-start.md", "methods.md", "prompts.md"}


def test_json_is_as_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    (shown,) = blocks(DOCS / "quick-start.md", "json")
    line = "otpt predict photo.jpg missing.jpg --classes cat dog --views 16 --json"
    assert main(_arguments(line)) == 2
    good, bad = map(json.loads, capsys.readouterr().out.splitlines())
    expected = json.loads(shown.source)
    assert list(good) == list(expected)
    assert list(good["top"][0]) == list(expected["top"][0])
    assert list(bad) == ["image", "error"]


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = {
        match
        for page in PAGES
        for block in blocks(page, "bash")
        for match in re.findall(r"^make ([a-z-]+)", block.source, re.MULTILINE)
    }
    assert named >= {"demo", "test", "lint", "bench", "bench-quick"}
    assert named <= targets
