"""Runs of the three systems, each on its own model, in the paper's layout ``medical``; resume, bad pictures."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from medical_bench import dataset, tiny
from oracles.command import run
from oracles.medical_models import write_vit

from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.evaluation import evaluate
from otpt.medical.baple import BapleModel
from otpt.medical.baple.judge import BackdoorDataset
from otpt.medical.fpt import FptNetwork, load_frozen_vit
from otpt.medical.fpt.judge import write_fpt
from otpt.medical.fpt.network import sizes_for
from otpt.medical.promptsmooth import Smoothing
from otpt.medical.settings import MedicalSettings

SMALL = Smoothing(copies=4)


def kather(each: int) -> Dataset:
    return dataset(each=each, name="kather-500")


def test_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for method in ("baple", "baple+o-tpt"):
        for target in (0, 1):
            generator = torch.Generator().manual_seed(len(files))
            model = BapleModel(0.3 * torch.randn(2, 64, generator=generator), torch.zeros(3, 32, 32))
            files.append(str(tmp_path / f"{method}-{target}.safetensors"))
            model.write(Path(files[-1]), {"method": method, "target": target, "classes": ["covid", "normal"]})
    covid = dataset(each=2, name="covid")
    settings = MedicalSettings(methods=["baple", "baple+o-tpt"], trained=files)
    first = evaluate([covid, BackdoorDataset(covid)], tiny(), settings, out=tmp_path / "a")

    write_vit(tmp_path / "vit", hidden_size=32)
    frozen = load_frozen_vit(str(tmp_path / "vit"), device="cpu", size=48)
    network = FptNetwork(sizes_for("fpt-plus", classes=2, frozen_width=32, frozen_heads=2, depth=3))
    write_fpt(tmp_path / "fpt.safetensors", network, {"method": "fpt", "backbone": frozen.fingerprint})
    settings = MedicalSettings(methods=["fpt"], trained=[str(tmp_path / "fpt.safetensors")])
    evaluate(dataset(each=2, name="isic2018"), frozen, settings, out=tmp_path / "b")

    settings = MedicalSettings(methods=["promptsmooth", "promptsmooth+o-tpt"], smoothing=SMALL)
    evaluate(kather(2), tiny(), settings, out=tmp_path / "c")
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


@pytest.mark.equality
def test_settings_that_are_sent_to_a_worker_make_the_same_bytes(tmp_path: Path) -> None:
    settings = MedicalSettings(methods=["promptsmooth"], smoothing=SMALL, part_size=2)
    evaluate(kather(2), tiny(), settings, out=tmp_path / "one")
    evaluate(kather(2), tiny(), pickle.loads(pickle.dumps(settings)), out=tmp_path / "two")
    paths = list((tmp_path / "one").rglob("*.parquet"))
    assert len(paths) == 2
    for path in paths:
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()


@pytest.mark.equality
def test_a_stopped_run_goes_on_and_other_settings_are_refused(tmp_path: Path) -> None:
    settings = MedicalSettings(methods=["promptsmooth"], smoothing=SMALL, part_size=2)
    whole = evaluate(kather(2), tiny(), settings, out=tmp_path / "run")
    last = whole.run.path(whole.run.items[-1])
    kept = last.read_bytes()
    last.unlink()
    evaluate(kather(2), tiny(), settings, out=tmp_path / "run")
    assert last.read_bytes() == kept
    other = MedicalSettings(methods=["promptsmooth"], smoothing=Smoothing(copies=4, sigma=0.5), part_size=2)
    with pytest.raises(OtptError, match=r"sigma is 0\.25 there and 0\.5 now"):
        evaluate(kather(2), tiny(), other, out=tmp_path / "run")


def test_unreadable_pictures_are_counted(tmp_path: Path) -> None:
    good = dataset(each=1)
    sources = [good[0].source, b"no picture"]
    data = Dataset("x", good.class_names, ["a", "b"], [0, 1], sources.__getitem__)
    settings = MedicalSettings(methods=["promptsmooth"], smoothing=SMALL)
    result = evaluate(data, tiny(), settings, out=tmp_path / "run")
    assert result.unreadable == 1
    assert result.scores[0].metrics is not None
    assert result.scores[0].metrics.pictures == 1
