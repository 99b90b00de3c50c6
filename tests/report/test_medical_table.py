"""Runs of the three medical systems, each on its own model, in the paper's layout ``medical``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from oracles.command import run
from oracles.data.medical_bench import dataset, tiny
from oracles.models.medical import write_vit

from otpt.data.backdoor import BackdoorDataset
from otpt.evaluation import Settings, evaluate
from otpt.methods.baple import BapleModel
from otpt.methods.fpt import FptNetwork, load_frozen_vit
from otpt.methods.fpt.files import write_fpt
from otpt.methods.fpt.network import sizes_for
from otpt.methods.promptsmooth import Smoothing

pytestmark = pytest.mark.slow


def test_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for method in ("baple", "baple+o-tpt"):
        for target in (0, 1):
            generator = torch.Generator().manual_seed(len(files))
            model = BapleModel(0.3 * torch.randn(2, 64, generator=generator), torch.zeros(3, 32, 32))
            files.append(str(tmp_path / f"{method}-{target}.safetensors"))
            model.write(Path(files[-1]), {"method": method, "target": target, "classes": ["covid", "normal"]})
    covid = dataset(each=2, name="covid")
    settings = Settings(methods=["baple", "baple+o-tpt"], trained=files)
    first = evaluate([covid, BackdoorDataset(covid)], tiny(), settings, out=tmp_path / "a")

    write_vit(tmp_path / "vit", hidden_size=32)
    frozen = load_frozen_vit(str(tmp_path / "vit"), device="cpu", size=48)
    network = FptNetwork(sizes_for("fpt-plus", classes=2, frozen_width=32, frozen_heads=2, depth=3))
    write_fpt(tmp_path / "fpt.safetensors", network, {"method": "fpt", "backbone": frozen.fingerprint})
    settings = Settings(methods=["fpt"], trained=[str(tmp_path / "fpt.safetensors")])
    evaluate(dataset(each=2, name="isic2018"), frozen, settings, out=tmp_path / "b")

    settings = Settings(methods=["promptsmooth", "promptsmooth+o-tpt"], smoothing=Smoothing(copies=4))
    evaluate(dataset(each=2, name="kather-500"), tiny(), settings, out=tmp_path / "c")
    layout = ("--layout", "medical")
    folders = [tmp_path / name for name in "abc"]  # BAPLe's two target classes are its seeds, the others have one
    code, out, err = run(capsys, "table", *folders, *layout, "--format", "json")
    assert code == 0, err
    assert len(json.loads(out)) == 3
    assert all(word in out for word in ("isic2018", "kather-500", "promptsmooth+o-tpt"))
    accuracies = [s.metrics.accuracy for s in first.scores if s.metrics and (s.dataset, s.method) == ("covid", "baple")]
    assert len(accuracies) == 2
    code, out, err = run(capsys, "table", *folders, *layout)
    assert code == 0, err
    assert all(word in out for word in ("Covid(BA)", "Covid(CA)", f"{50 * sum(accuracies):.2f}", "KC"))
    assert "–" not in out
