"""Errors that name the remedy, and warnings before a mistake."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from oracles.command import run
from oracles.data.data_files import put_images
from oracles.models.medical import write_plip

import otpt
from otpt.data import load_dataset
from otpt.errors import OtptError
from otpt.evaluation import Settings
from otpt.report import open_results

pytestmark = pytest.mark.slow

IMAGES = [f"{name}/{i}.png" for name in ("cat", "dog") for i in range(3)]


@pytest.mark.parametrize(("name", "write"), [("t.csv", None), ("t.parquet", "parquet")])
def test_a_table_with_other_columns_lists_what_it_has(tmp_path: Path, name: str, write: str | None) -> None:
    if write is None:
        (tmp_path / name).write_text("Filename,Class,Width\na.jpg,cat,3\n")
    else:
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.table({"Filename": ["a.jpg"], "Class": ["cat"], "Width": [3]}), tmp_path / name)
    with pytest.raises(OtptError, match=r"expected 'path' and 'label', found 'Filename', 'Class', 'Width'\. Rename"):
        load_dataset(str(tmp_path / name))


def test_a_temperature_that_was_not_published_names_the_remedy(capsys, images: Path) -> None:
    common = ("predict", images / "0.png", "--classes", "cat,dog", "--backbone", "pocket", "--views", 2, "--json")
    code, _, err = run(capsys, *common, "--method", "tpt+ts")
    if code:  # the embedded model is of a family without a published temperature
        assert "--set temperature=1.2" in err
        assert run(capsys, *common, "--method", "tpt+ts", "--set", "temperature=1.2")[0] == 0
    with pytest.raises(OtptError, match=r"--set temperature=1\.2.*Classifier\.calibrate"):
        otpt.calibration.fixed_temperature("other")


@pytest.mark.parametrize("given", ["pockett", "poket", "Pocket"])
def test_a_misspelt_pocket_is_suggested(given: str, capsys, images: Path) -> None:
    code, _, err = run(capsys, "predict", images / "0.png", "--classes", "cat,dog", "--backbone", given)
    assert code == 2
    assert "Did you mean: pocket" in err


def test_a_string_in_place_of_a_list(model: str, images: Path, tmp_path: Path) -> None:
    clf = otpt.load(model, device="cpu").set_classes(["cat", "dog"])
    says = r"the single text 'o-tpt'; expected a list of names, such as \['o-tpt'\]"
    for call in (
        lambda: Settings(methods="o-tpt"),
        lambda: clf.compare(images / "0.png", "o-tpt"),
        lambda: list(clf.stream([images / "0.png"], "o-tpt")),
    ):
        with pytest.raises(OtptError, match=says):
            call()
    with pytest.raises(OtptError, match="the single text 'an image of'; expected a list"):
        Settings(prompts="an image of")
    with pytest.raises(OtptError, match=r"the single path .*; expected a list of paths"):
        open_results(str(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(OtptError, match="seeds"):
        Settings(seeds=3)  # type: ignore[arg-type]
    for seed in (0.5, "1", True):
        with pytest.raises(OtptError, match="expected a list of whole numbers"):
            Settings(seeds=[seed])


def test_evaluating_on_the_images_of_the_training_warns(tmp_path: Path, model: str, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    put_images(tmp_path / "train", IMAGES)
    put_images(tmp_path / "test", IMAGES)
    common = ("--backbone", model, "--device", "cpu", "--no-cache")
    code, _, err = run(capsys, "train", "coop", "train", "--shots", 2, "--epochs", 2, *common, "--out", "c.safetensors")
    assert code == 0, err
    evaluate = ("--methods", "coop", "--context", "c.safetensors", *common)
    code, _, err = run(capsys, "evaluate", "train", *evaluate, "--out", "same")
    assert code == 0, err
    assert "4 of the 6 images of 'train' are among those that the prompt of 'coop' was learned from" in err
    code, _, err = run(capsys, "evaluate", "test", *evaluate, "--out", "other")
    assert code == 0
    assert "learned from" not in err, "another folder, though its files have the same names"
    Path("list.csv").write_text("path,label\ntrain/cat/0.png,cat\ntrain/cat/1.png,cat\ntrain/cat/2.png,cat\n")
    code, _, err = run(capsys, "evaluate", "list.csv", *evaluate, "--out", "listed", "--classes", "cat", "dog")
    assert code == 0, err
    assert "2 of the 3 images of 'list'" in err, "the same files by another way"


def test_hf_with_a_local_folder_looks_at_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from otpt.backbones import load_backbone

    def no_network(*_: object, **__: object) -> object:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("otpt.backbones.sources.hub.reachable", no_network)
    write_plip(tmp_path / "clip")
    plain = load_backbone(str(tmp_path / "clip"), device="cpu")
    assert load_backbone(f"hf:{tmp_path / 'clip'}", device="cpu").fingerprint == plain.fingerprint


def test_hf_with_a_local_data_set(tmp_path: Path) -> None:
    library = pytest.importorskip("datasets")
    put_images(tmp_path / "images", IMAGES)
    paths = [str(tmp_path / "images" / name) for name in IMAGES]
    features = library.Features({"image": library.Image(), "label": library.ClassLabel(names=["cat", "dog"])})
    rows = library.Dataset.from_dict({"image": paths, "label": [0, 0, 0, 1, 1, 1]}, features=features)
    library.DatasetDict({"test": rows}).save_to_disk(str(tmp_path / "saved"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = load_dataset(f"hf:{tmp_path / 'saved'}")
    assert (data.class_names, data.labels) == (("cat", "dog"), (0, 0, 0, 1, 1, 1))
    with pytest.raises(OtptError, match=r"Unknown split 'val'; there are test\. A folder of class folders is read"):
        load_dataset(f"hf:{tmp_path / 'saved'}", split="val")


def test_hf_with_a_folder_of_files_draws_no_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    library = pytest.importorskip("datasets")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    put_images(tmp_path / "files", [f"{name}/{i}.png" for name in ("cat", "dog") for i in range(2)])
    before = library.are_progress_bars_disabled()
    data = load_dataset(f"hf:{tmp_path / 'files'}", split="train")
    assert (data.class_names, data.labels) == (("cat", "dog"), (0, 0, 1, 1))
    assert capfd.readouterr().err == ""
    assert library.are_progress_bars_disabled() == before


def test_a_table_of_open_clip_has_tabs(tmp_path: Path) -> None:
    put_images(tmp_path, ["cat/0.png", "dog/0.png"])
    (tmp_path / "t.csv").write_text("path\tlabel\ncat/0.png\tcat, big\ndog/0.png\tdog\n")
    data = load_dataset(str(tmp_path / "t.csv"))
    assert [data.class_names[label] for label in data.labels] == ["cat, big", "dog"]
    (tmp_path / "t.csv").write_text("filepath\ttitle\ncat/0.png\tcat\n")
    with pytest.raises(OtptError, match=r"has no columns 'path' and 'label'; .*found 'filepath', 'title'"):
        load_dataset(str(tmp_path / "t.csv"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("help",), "write otpt --help. The commands are predict"),
        (("list", "models"), "write otpt methods, otpt models or otpt datasets. The"),
        (("build", "runs/a", "--output", "a.csv"), "write otpt metrics RUN … -o FILE.csv. The"),
        (("eval", "x"), "did you mean evaluate? The commands"),
        (("xyzzy",), "unknown command 'xyzzy'. The commands"),
        (("evaluate", "x", "--amp"), "write --precision bf16 or --precision fp16. See"),
        (("evaluate", "x", "--task", "zeroshot_classification"), "leave it out"),
        (("evaluate", "x", "--method", "tpt", "--sedes", "1"), "did you mean --seeds? See"),
    ],
)
def test_commands_and_options_of_elsewhere(given: tuple[str, ...], said: str, capsys) -> None:
    code, _, err = run(capsys, *given)
    assert code == 2
    assert said in err


def test_a_run_is_no_file(capsys, tmp_path: Path) -> None:
    put_images(tmp_path / "mine", IMAGES)
    out = tmp_path / "result.json"
    code, _, err = run(capsys, "evaluate", tmp_path / "mine", "--backbone", "pocket", "--views", 2, "--out", out)
    assert code == 2
    assert "looks like a file; expected a folder, such as runs/result" in err
    assert not out.exists()


LONG = "w" * 300  # more than a file system allows


@pytest.mark.parametrize(
    "given",
    [
        ("compare", "run", LONG),
        ("datasets", "--data", LONG),
        ("evaluate", "mine", "--backbone", "pocket", "--out", f"{LONG}.csv"),
        ("sweep", "mine", "--backbone", "pocket", "--prompts", "word " * 80),
    ],
    ids=lambda given: given[0],
)
def test_a_word_that_is_too_long_for_a_file(given: tuple[str, ...], capsys, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    put_images(tmp_path / "mine", IMAGES)
    put_images(tmp_path / "run", IMAGES)
    (tmp_path / "run" / "config.json").write_text("{}")
    code, _, err = run(capsys, *given)
    assert code == 2
    assert err.splitlines()[-1].startswith("otpt: ")


def test_names_of_other_libraries_say_what_to_write(model: str) -> None:
    for name, said in (
        ("create_model_and_transforms", r"write otpt\.load"),
        ("pipeline", r"candidate_labels=\[…\]"),
        ("list_pretrained", r"otpt\.backbones\.list_models\(\)"),
        ("Classifierr", "did you mean Classifier"),
    ):
        with pytest.raises(AttributeError, match=said):
            getattr(otpt, name)
    clf = otpt.load(model, device="cpu")
    with pytest.raises(AttributeError, match=r"write to\('cuda'\)"):
        clf.cuda()
    with pytest.raises(AttributeError, match="did you mean predict"):
        clf.predcit  # noqa: B018
    with pytest.raises(OtptError, match=r"a tag of the weights, not a method; write otpt\.load\('ViT-B-32/openai'\)"):
        otpt.load("ViT-B-32", "openai")
