"""What is imported for what: ``pocket`` and the list of models need neither open_clip nor what it brings."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from otpt.backbones import list_models
from otpt.backbones.sources import open_clip_names
from otpt.backbones.sources.open_clip_names import OpenClipNames, ask_open_clip, write_names

pytestmark = pytest.mark.slow

POCKET = """
    import sys
    import torch
    import otpt

    backbone = otpt.load_backbone("pocket", device="cpu")
    backbone.encode_pixels(torch.zeros(2, 3, 64, 64))
    ids = backbone.text.tokenize(["a cat", "a dog"])
    backbone.text.encode_embeddings(ids, backbone.text.embed(ids))
    heavy = {"open_clip", "timm", "torchvision", "transformers", "huggingface_hub", "torch._dynamo"}
    print(sorted(heavy & sys.modules.keys()))
"""

# only this room: the package's own __init__ is not run
CATALOGUE = """
    import importlib.util
    import sys

    sys.modules["otpt"] = importlib.util.module_from_spec(importlib.util.find_spec("otpt"))
    from otpt.backbones import list_models

    assert {"pocket", "ViT-B-16"} <= {entry.name for entry in list_models()}
    print(sorted({"torch", "open_clip", "numpy"} & sys.modules.keys()))
"""


@pytest.mark.parametrize("script", [POCKET, CATALOGUE], ids=["pocket", "catalogue"])
def test_nothing_heavy_is_imported(script: str) -> None:
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


def test_stored_names_are_those_of_the_installed_open_clip(tmp_path: Path) -> None:
    write_names(tmp_path / "names.json")
    stored = open_clip_names.FILE.read_text(encoding="utf-8")
    same = stored == (tmp_path / "names.json").read_text(encoding="utf-8")
    assert same, "open_clip has changed: run python -m otpt.backbones.sources.open_clip_names"


def test_stored_names_are_read_as_open_clip_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ask_open_clip()
    monkeypatch.delitem(sys.modules, "open_clip")
    monkeypatch.setattr(open_clip_names, "ask_open_clip", None)  # not asked again
    assert open_clip_names.open_clip_names() == asked
    assert list(open_clip_names.open_clip_names().tags) == list(asked.tags)


def test_another_version_of_open_clip_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = OpenClipNames(("Other",), {"Other": ("tag",)})
    monkeypatch.delitem(sys.modules, "open_clip")
    monkeypatch.setattr(open_clip_names, "ask_open_clip", lambda: theirs)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0")
    assert list_models()[-1].name == "Other"


def test_every_public_name_is_there() -> None:
    import otpt.backbones

    assert "load_backbone" in otpt.backbones.__all__
    for name in otpt.backbones.__all__:
        assert getattr(otpt.backbones, name).__module__.startswith("otpt.backbones.")
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        otpt.backbones.nothing_of_that_name  # noqa: B018


def test_stored_names_are_few_lines_of_data() -> None:
    stored = json.loads(open_clip_names.FILE.read_text(encoding="utf-8"))
    assert stored.keys() == {"version", "architectures", "tags"}
    assert set(stored["tags"]) <= set(stored["architectures"])
