"""The command line: answers, formats, and one clear sentence with exit code 2 for whatever cannot be used."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from oracles.command import run
from oracles.models.tiny import open_clip_safetensors, openai_archive

pytestmark = pytest.mark.slow

FEW = ["--views", "12"]
CLASSES = ["--classes", "cat", "dog", "red panda"]


def test_predict_prints_a_table(capsys, model: str, images: Path) -> None:
    code, out, err = run(
        capsys, "predict", images / "0.png", *CLASSES, "--backbone", model, *FEW, "--method", "zero-shot", "o-tpt"
    )
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "zero-shot" in lines[1]
    assert "o-tpt" in lines[1]
    assert len({len(line.rstrip()) for line in lines[2:5]}) == 1, "columns line up"


def test_a_budget_takes_the_place_of_the_number_of_views(capsys, model: str, images: Path) -> None:
    command = ["predict", images / "0.png", *CLASSES, "--backbone", model, "--json", "--budget"]
    answers = [json.loads(run(capsys, *command, budget)[1]) for budget in ("8", "12")]
    fixed = json.loads(run(capsys, *command[:-1], "--views", "8")[1])
    assert answers[0]["top"] == fixed["top"]  # no round before eight views
    code, _, err = run(capsys, *command, "12", "--views", "12")
    assert (code, "not allowed with argument" in err) == (2, True)
    code, _, err = run(capsys, *command, "0")
    assert (code, "at least 1, not 0" in err) == (2, True)


def test_predict_prints_json_for_a_folder(capsys, model: str, images: Path) -> None:
    code, out, _ = run(capsys, "predict", images, *CLASSES, "--backbone", model, *FEW, "--json", "--top", "2")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [Path(row["image"]).name for row in rows] == ["0.png", "1.png", "2.png"]
    assert all(row["method"] == "confident-half" and len(row["top"]) == 2 for row in rows)
    assert all(row["top"][0] == {"label": row["label"], "probability": row["confidence"]} for row in rows)


def test_standard_input_and_the_file_agree(capsys, model: str, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [*CLASSES, "--backbone", model, *FEW, "--json"]
    _, expected, _ = run(capsys, "predict", images / "0.png", *command)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((images / "0.png").read_bytes())))
    code, out, _ = run(capsys, "predict", "-", images / "1.png", *command)
    assert code == 0
    first, second = map(json.loads, out.splitlines())
    assert first == {**json.loads(expected), "image": "-"}
    assert second["image"].endswith("1.png")
    code, _, err = run(capsys, "predict", "-", "-", *command)
    assert (code, "was given twice" in err) == (2, True)


def test_an_address_is_fetched_and_its_failure_told(
    capsys, model: str, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    command = [*CLASSES, "--backbone", model, *FEW, "--json"]
    handler = partial(SilentHandler, directory=str(images))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/0.png"
        code, out, _ = run(capsys, "predict", url, url.replace("0.png", "9.png"), *command)
        server.shutdown()
        thread.join()
    assert code == 2
    good, bad = map(json.loads, out.splitlines())
    _, expected, _ = run(capsys, "predict", images / "0.png", *command)
    assert good == {**json.loads(expected), "image": url}
    assert "the server answered 404" in bad["error"]


class SilentHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Silence."""


def test_good_images_are_answered_beside_bad_ones(capsys, model: str, images: Path, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("not an image")
    given = [images / "0.png", tmp_path / "none.jpg", tmp_path / "text.jpg", images / "1.png"]
    code, out, err = run(capsys, "predict", *given, *CLASSES, "--backbone", model, *FEW)
    assert code == 2
    assert [Path(line.split()[0]).name for line in out.splitlines()] == ["0.png", "1.png"], "a line each"
    assert "none.jpg" in err
    assert "text.jpg" in err
    assert "2 of 4 images could not be read" in err
    code, out, _ = run(capsys, "predict", *given, *CLASSES, "--backbone", model, *FEW, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 2
    assert ["error" in row for row in rows] == [False, True, True, False]


def test_classes_from_a_file(capsys, model: str, images: Path, tmp_path: Path) -> None:
    file = tmp_path / "classes.txt"
    file.write_text("cat\n\n  dog \nкошка\n", encoding="utf-8")
    code, out, err = run(
        capsys, "predict", images / "0.png", "--classes-file", file, "--backbone", model, *FEW, "--json"
    )
    assert (code, err) == (0, "otpt: note: --classes-file is an old spelling; write --classes @FILE.\n")
    assert {entry["label"] for entry in json.loads(out)["top"]} == {"cat", "dog", "кошка"}


def test_settings_reach_the_method(capsys, model: str, images: Path) -> None:
    def confidence(*more: str) -> float:
        code, out, _ = run(capsys, "predict", images / "2.png", *CLASSES, "--backbone", model, *FEW, "--json", *more)
        assert code == 0
        return float(json.loads(out)["confidence"])

    def tuned(*more: str) -> float:
        return confidence("--method", "o-tpt", *more)

    plain = tuned()
    assert tuned("--set", "lambda=18") == plain
    assert tuned("--set", "lambda=0") == confidence("--method", "tpt")
    assert tuned("--set", "lambda=0", "--set", "steps=2") == tuned("--set", "lambda=0", "steps=2")
    code, out, _ = run(
        capsys, "predict", images / "2.png", *CLASSES, "--backbone", model, *FEW, "--json",
        "--method", "zero-shot", "o-tpt", "--set", "lambda=0",
    )  # fmt: skip
    assert code == 0
    assert json.loads(out.splitlines()[1])["confidence"] == confidence("--method", "tpt")
    for more in (["--set", "lambda=0"], ["--set", "steps=2"], ["--seed", "3"], ["--no-augmix"], ["--family", "shift"]):
        assert tuned(*more) != plain
    for more in (["--prompt", "an example of"], ["--prompt", "a photo of [CLS] outside"], ["--official-precision"]):
        assert tuned(*more) != plain
    assert tuned("--precision", "float64") == pytest.approx(plain, abs=1e-3)


@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_every_file_format_end_to_end(capsys, kind: str, images: Path, tmp_path: Path) -> None:
    openai_archive(tmp_path / "openai.pt", kind)
    reference = open_clip_safetensors(tmp_path / "weights.safetensors", kind)
    torch.save({"state_dict": reference.state_dict()}, tmp_path / "weights.pt")
    found = {}
    for name in ("openai.pt", "weights.safetensors", "weights.pt"):
        more = [] if name == "openai.pt" else ["--quick-gelu"]
        code, out, _ = run(
            capsys, "predict", images / "0.png", *CLASSES, "--backbone", tmp_path / name, *FEW, *more, "--json"
        )
        assert code == 0, name
        found[name] = json.loads(out)["confidence"]
    assert found["weights.safetensors"] == found["weights.pt"]
    # OpenAI's archive holds the same weights rounded to float16
    assert found["openai.pt"] == pytest.approx(found["weights.pt"], abs=0.1)


def test_methods_and_models(capsys, tmp_path: Path) -> None:
    code, out, _ = run(capsys, "methods")
    assert code == 0
    assert "orthogonality 18 / 2" in out
    _, out, _ = run(capsys, "methods", "--json")
    assert json.loads(out)["c-tpt"]["objectives"]["dispersion"] == {"fine-grained": 50.0, "shift": 20.0}
    file = tmp_path / "mine.toml"
    file.write_text('[gentle]\nsummary = "mild"\nobjectives = { entropy = 1.0, orthogonality = 6.0 }\n')
    _, out, _ = run(capsys, "methods", file)
    assert "gentle" in out
    code, out, _ = run(capsys, "models")
    assert code == 0
    assert "ViT-B-16" in out
    _, out, _ = run(capsys, "models", "--json")
    assert all(set(row) == {"name", "description"} for row in json.loads(out))


BAD = {
    "no classes": (["p.png"], "No class names were given"),
    "one class": (["p.png", "--classes", "cat"], "Only one class name"),
    "a class twice": (["p.png", "--classes", "cat", "dog", "cat"], "given twice"),
    "a blank class": (["p.png", "--classes", "cat", " "], "is blank"),
    "an over-long class": (["p.png", "--classes", "cat", "so " * 90], "77"),
    "a class file that is not there": (["p.png", "--classes", "@none.txt"], "No such file"),
    "a comma list of which a quote is open": (["p.png", "--classes", 'cat, "dog'], "cannot be read"),
    "an unknown method": (["p.png", *CLASSES, "--method", "otp"], "Did you mean"),
    "a method twice": (["p.png", *CLASSES, "--method", "tpt", "tpt"], "given twice"),
    "a method file that is not there": (["p.png", *CLASSES, "--method", "none.toml"], "No such file"),
    "two values of a setting": (
        ["p.png", *CLASSES, "--method", "o-tpt", "--set", "lambda=1", "--set", "lambda=2"],
        "--set names 'lambda' twice (1, 2); expected one value",
    ),
    "a negative lambda": (["p.png", *CLASSES, "--method", "o-tpt", "--set", "lambda=-3"], "0 or more"),
    "a lambda that is no number": (
        ["p.png", *CLASSES, "--method", "o-tpt", "--set", "lambda=big"],
        "expected a number",
    ),
    "a setting without value": (["p.png", *CLASSES, "--set", "lambda"], "expected NAME=VALUE"),
    "an unknown device": (["p.png", *CLASSES, "--device", "gpu"], "gpu"),
    "a device that is not here": (["p.png", *CLASSES, "--device", "cuda:7"], "cuda:7"),
    "an unknown precision": (["p.png", *CLASSES, "--precision", "int8"], "int8"),
    "no views": (["p.png", *CLASSES, "--views", "0"], "at least 1"),
    "no rows": (["p.png", *CLASSES, "--top", "0"], "expected 1 or more"),
    "a prompt of odd words": (["p.png", *CLASSES, "--prompt", "a H&E patch"], "not a single token"),
    "an unknown option": (["p.png", *CLASSES, "--metod", "tpt"], "--metod"),
    "a number that is none": (["p.png", *CLASSES, "--views", "many"], "many"),
    "a negative number of threads": (["p.png", *CLASSES, "--threads", "-1"], "0 or more"),
    "a folder without images": (["empty", *CLASSES], "holds no images"),
    "no image": (CLASSES, "IMAGE"),
    "a file of another kind": (["p.png", *CLASSES, "-o", "x.xlsx"], "expected a name that ends in .csv"),
    "a setting that no method has": (
        ["p.png", *CLASSES, "--method", "zero-shot", "tpt", "--set", "lambda=1"],
        "lambda",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(capsys, case: str, model: str, images: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "p.png").write_bytes((images / "0.png").read_bytes())
    arguments, message = BAD[case]
    code, out, err = run(capsys, "predict", *arguments, "--backbone", model)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1, "one sentence, one line"
    assert out == ""


BACKBONES = {
    "unknown name": "ViT-B-61/openai",
    "unknown tag": "ViT-B-16/opnai",
    "a file that is not there": "none.safetensors",
    "a folder that is not there": "local-dir:nowhere",
    "an empty file": "empty.pt",
    "a text": "text.safetensors",
    "a pickle that would run code": "evil.pt",
    "a truncated archive": "cut.pt",
    "weights that are not a number": "nan.safetensors",
    "another architecture": "other.safetensors",
}


@pytest.fixture(scope="module")
def broken_backbones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("broken")
    (folder / "empty.pt").touch()
    (folder / "text.safetensors").write_text("hello")

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {folder / 'ran'}",)

    torch.save({"state_dict": Evil()}, folder / "evil.pt")
    openai_archive(folder / "whole.pt")
    (folder / "cut.pt").write_bytes((folder / "whole.pt").read_bytes()[:5000])
    model = open_clip_safetensors(folder / "good.safetensors")
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(
        {**weights, "ln_final.bias": torch.full_like(weights["ln_final.bias"], torch.nan)}, folder / "nan.safetensors"
    )
    save_file({"layer.weight": torch.zeros(3, 3)}, folder / "other.safetensors")
    return folder


@pytest.mark.parametrize("case", BACKBONES)
def test_bad_backbones(capsys, case: str, broken_backbones: Path, images: Path, monkeypatch) -> None:
    monkeypatch.chdir(broken_backbones)
    given = [images / "0.png", *CLASSES, "--quick-gelu", "--backbone", BACKBONES[case]]
    code, out, err = run(capsys, "predict", *given)
    assert (code, out) == (2, "")
    assert err.startswith("otpt: ")
    assert err.splitlines()[-1].startswith("otpt: ")
    assert not (broken_backbones / "ran").exists(), "code in the checkpoint was run"


def test_as_a_program(model: str, images: Path) -> None:
    """The installed script: exit codes as the shell sees them, and an unreadable image without a traceback."""
    script = Path(sys.executable).with_name("otpt")
    common = [*CLASSES, "--backbone", model, *FEW, "--json"]
    good = subprocess.run([script, "predict", images / "0.png", *common], capture_output=True, text=True)
    assert good.returncode == 0
    bad = subprocess.run([script, "predict", "none.png", *common], capture_output=True, text=True)
    assert bad.returncode == 2
    assert "Traceback" not in bad.stderr


def test_an_archive_is_not_mistaken_for_a_checkpoint(capsys, images: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data.pt", "w") as archive:
        archive.writestr("readme.txt", "nothing to see")
    code, _, err = run(capsys, "predict", images / "0.png", *CLASSES, "--backbone", tmp_path / "data.pt")
    assert code == 2
    assert "data.pt" in err
