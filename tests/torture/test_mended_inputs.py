"""Faults that the campaign of hostile inputs found, each with the smallest input that showed it."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import tarfile
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from oracles.data.labelled import facts, labelled
from oracles.runs.runs_bench import config
from PIL import Image

from otpt.backbones.sources.architectures import infer_config
from otpt.backbones.sources.checkpoints import read_checkpoint
from otpt.backbones.sources.huggingface import huggingface_config, huggingface_weights
from otpt.calibration import Calibrated, fit_calibration, read_calibration
from otpt.calibration.file import _checksum
from otpt.cli.options.class_names import chosen_classes
from otpt.data import load_dataset
from otpt.data.classes import parse_class_list
from otpt.data.own.shards import expand_braces
from otpt.errors import OtptError
from otpt.files import read_json
from otpt.images import open_image
from otpt.methods.inits.attributes import read_attributes
from otpt.methods.names.registry import get_method, load_methods
from otpt.methods.plugins import load_plugin
from otpt.prompts.learned.checkpoints import read_learned
from otpt.report.page.images import Thumbnails
from otpt.report.page.page import marked
from otpt.report.page.summary import isolated
from otpt.runs import Run, score_run
from torture.inputs import pickles

DEEP = "[" * 200_000


def archive(tree: bytes, records: dict[str, bytes] | None = None, *, pressed: bool = False) -> bytes:
    """A TorchScript archive with this pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if pressed else zipfile.ZIP_STORED) as file:
        file.writestr("a/data.pkl", tree)
        file.writestr("a/constants.pkl", b"\x80\x02).")
        for key, data in (records or {}).items():
            file.writestr(f"a/data/{key}", data)
    return buffer.getvalue()


# images


def test_postscript_is_not_given_to_ghostscript(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow starts gs for an EPS file, which runs the file's program: an image from the web started a process."""
    buffer = io.BytesIO()
    Image.new("RGB", (2, 2)).save(buffer, "EPS")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    for source in (buffer.getvalue(), Image.open(buffer)):
        with pytest.raises(OtptError, match=r"EPS is a program .* convert it"):
            open_image(source)


# messages


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "\u202egnp", "\ud800", "\u2028"])
def test_a_message_is_one_line_that_a_terminal_can_show(name: str) -> None:
    told = str(OtptError(f"There is no {name}."))
    assert told.isprintable()
    assert len(told.splitlines()) == 1


def test_a_message_is_bounded_and_keeps_its_end() -> None:
    told = str(OtptError(f"There is no {'x' * 10**6}; check the path."))
    assert len(told) < 2100
    assert told.startswith("There is no x")
    assert told.endswith("; check the path.")
    assert str(OtptError("Emoji stay: 👩‍🚀, and ½ too.")) == "Emoji stay: 👩‍🚀, and ½ too."


# checkpoints


@pytest.mark.parametrize(
    "tree",
    [
        b"\x80\x04]r" + struct.pack("<I", 2**31 - 1) + b".",  # a place in the memo that takes gigabytes
        b"\x80\x04\x95" + struct.pack("<Q", 2**64 - 1) + b"].",  # a frame longer than any file
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x.",  # a bytearray of a terabyte
        b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.",
    ],
)
def test_a_pickle_that_asks_for_gigabytes_is_refused(tree: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(archive(tree))
    with pytest.raises(OtptError):
        read_checkpoint(path)


def test_modules_that_hold_each_other_do_not_make_an_endless_tree(tmp_path: Path) -> None:
    """Forty modules, each with the next one twice: 2⁴⁰ paths."""
    node = pickles.module({})
    tree = node + b"q\x00"
    for level in range(40):
        state = b"}(" + b"X\x01\x00\x00\x00a" + b"h" + bytes([level]) + b"X\x01\x00\x00\x00b" + b"h" + bytes([level])
        tree += b"c__torch__.m\nM\n)\x81" + state + b"ub" + b"q" + bytes([level + 1])
    path = tmp_path / "a.pt"
    path.write_bytes(archive(b"\x80\x02" + tree + b"."))
    with pytest.raises(OtptError):
        read_checkpoint(path)


def test_a_zip_that_unpacks_to_far_more_than_it_is_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(archive(b"\x80\x02}.", {"0": bytes(200 << 20)}, pressed=True))
    for read in (read_checkpoint, read_learned):
        with pytest.raises(OtptError, match="would unpack to"):
            read(path)


def test_a_few_bytes_are_not_taken_for_terabytes(tmp_path: Path) -> None:
    """A stride of 0 repeats one value; the check for finite values would write all of them out."""
    import torch

    path = tmp_path / "a.pt"
    torch.save({"ctx": torch.zeros(1).as_strided((10**6, 10**6), (0, 0))}, path)
    for read in (read_checkpoint, read_learned):
        with pytest.raises(OtptError, match="no more than the file holds"):
            read(path)


def test_tensors_without_plain_values_are_told(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "a.pt"
    for tensor in (torch.ones(2, 2).to_sparse(), torch.ones(2, 2, device="meta")):
        torch.save({"ctx": tensor}, path)
        for read in (read_checkpoint, read_learned):
            with pytest.raises(OtptError):
                read(path)


def test_weights_of_other_shapes_are_told(tmp_path: Path) -> None:
    import torch

    with pytest.raises(OtptError, match="architecture="):
        infer_config({"visual.proj": torch.ones(2, 2), "visual.conv1.weight": torch.ones(2, 2)}, "a.pt")


def test_digits_that_are_no_numbers(tmp_path: Path) -> None:
    """'²'.isdigit() holds, and int('²') fails."""
    import torch

    path = tmp_path / "a.pt"
    torch.save({"ctx": torch.ones(2, 2), "compound_prompts_text.²": torch.ones(2, 2)}, path)
    with pytest.raises(OtptError):
        read_learned(path)


# folders of models


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "..", 7])
def test_an_index_of_weights_names_files_of_its_own_folder(name: Any, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    index = {"weight_map": {"x": name}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(OtptError, match="files of the same folder"):
        huggingface_weights(tmp_path / "model")


@pytest.mark.parametrize(
    "config", [{"text_config": [1]}, {"text_config": {"hidden_act": []}}, {"vision_config": {"hidden_size": 0}}]
)
def test_a_damaged_config_of_transformers(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip", **config}), encoding="utf-8")
    with pytest.raises(OtptError, match=r"config\.json"):
        huggingface_config(tmp_path)


# plugins


@pytest.mark.parametrize("name", ["mine.so", "mine.pyc"])
def test_a_compiled_plugin_is_refused(name: str, tmp_path: Path) -> None:
    """The loader of compiled modules raised an ImportError of its own."""
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(OtptError, match=r"is not a Python file; expected FILE\.py"):
        load_plugin(tmp_path / name)


def test_a_plugin_whose_path_has_a_null_is_told() -> None:
    with pytest.raises(OtptError, match="Cannot read the plugin"):
        load_plugin("a\0b.py")


# texts


def test_a_name_with_isolates_of_its_own_adds_nothing_to_a_page() -> None:
    """Each isolate of a name became a tag: the page had one <bdi> too many, which nothing closed."""
    page = str(marked(isolated("a\u2069b\u2068\u2067c") + " has the lowest ECE."))
    assert page == "<bdi>abc</bdi> has the lowest ECE."


def test_the_name_of_a_data_set_of_a_run_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of a run whose data set is called '..' looked for images in the parent of the working folder."""
    monkeypatch.setattr("otpt.report.page.images.load_dataset", lambda *_, **__: pytest.fail("it was looked for"))
    for name in ("..", "/etc", "mine"):
        found = Thumbnails({"name": name, "source": "mine", "fingerprint": "f"}, None)
        assert found.reason == "The images are not shown: the run does not say where they are."


def test_deeply_nested_files(tmp_path: Path) -> None:
    for name, read in (("a.toml", load_methods), ("b.toml", read_attributes), ("c.json", read_attributes)):
        path = tmp_path / name
        path.write_text(f"a = {DEEP}" if name.endswith("toml") else DEEP, encoding="utf-8")
        with pytest.raises(OtptError):
            read(path)
    with pytest.raises(OtptError, match="not JSON"):
        read_json(tmp_path / "c.json", "file")


def test_a_path_with_a_null_is_told() -> None:
    with pytest.raises(OtptError):
        get_method("a\0b.toml")


def test_a_long_comma_list_of_classes_is_no_path() -> None:
    """Asking whether a name of more than 255 letters is a file raised an OSError: 60 classes could not be given."""
    found = chosen_classes(Namespace(classes=[",".join(f"class number {i}" for i in range(60))]))
    assert found is not None
    assert len(found) == 60


@pytest.mark.parametrize("spec", ["x" * 5000, "x" * 5000 + ".tar", "~nobody-of-that-name/x", "a\0.csv"])
def test_a_name_that_can_be_no_file_is_told(spec: str) -> None:
    with pytest.raises(OtptError):
        load_dataset(spec)


def test_the_duplicate_among_100_000_classes_is_found_at_once() -> None:
    names = [f"class {i}" for i in range(100_000)]
    with pytest.raises(OtptError, match="duplicate class 'class 99998'"):
        parse_class_list("\n".join([*names[:-1], names[-2]]), "x")


# data sets


@pytest.mark.parametrize("spec", ["{0..99999999999}.tar", "{0..999}{0..999}{0..999}.tar", "{0..9}" * 30])
def test_braces_do_not_expand_without_end(spec: str) -> None:
    with pytest.raises(OtptError, match="check the range"):
        expand_braces(spec)


def test_braces_expand_as_before() -> None:
    assert expand_braces("{a,b}-{8..10}") == ["a-8", "a-9", "a-10", "b-8", "b-9", "b-10"]
    assert expand_braces("{" * 5000) == ["{" * 5000]


def tar(*members: tuple[str, bytes, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as file:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.size = kind, len(content)
            file.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_a_label_is_not_read_without_bound(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar(("a.jpg", tarfile.REGTYPE, b"x"), ("a.cls", tarfile.REGTYPE, bytes(2 << 20))))
    with pytest.raises(OtptError, match="at most"):
        load_dataset(str(path))


def test_a_label_nested_too_deeply(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar(("a.jpg", tarfile.REGTYPE, b"x"), ("a.json", tarfile.REGTYPE, DEEP.encode())))
    with pytest.raises(OtptError, match="holds no label"):
        load_dataset(str(path))


def test_a_number_of_5000_digits_is_no_label(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("cat\ndog\n", encoding="utf-8")
    (tmp_path / "a.csv").write_text(f"path,label\na.jpg,{'9' * 5000}\n", encoding="utf-8")
    with pytest.raises(OtptError, match="has no class name"):
        load_dataset(str(tmp_path / "a.csv"))


def test_one_row_again_and_again_is_no_table(tmp_path: Path) -> None:
    table = pa.table({"path": pa.repeat("a.jpg", 3_000_000), "label": pa.repeat("cat", 3_000_000)})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd")
    with pytest.raises(OtptError, match="more than different paths"):
        load_dataset(str(tmp_path / "a.parquet"))


@pytest.mark.parametrize(
    "rows", ['[["a.jpg", 1e999, "banded"]]', '[["\\ud800.jpg", 0, "banded"]]', DEEP, '[["../x.jpg", 0, "banded"]]']
)
def test_hostile_split_files(rows: str, tmp_path: Path) -> None:
    (tmp_path / "dtd" / "images").mkdir(parents=True)
    (tmp_path / "dtd" / "split_zhou_DescribableTextures.json").write_text(f'{{"test": {rows}}}', encoding="utf-8")
    with pytest.raises(OtptError):
        load_dataset("dtd", root=tmp_path)


def test_halves_of_letters_are_no_names() -> None:
    from otpt.data import Dataset

    with pytest.raises(OtptError, match="no text"):
        Dataset("x", ["a", "b"], ["\ud800"], [0], lambda index: b"")


@pytest.mark.parametrize(
    ("names", "told"),
    [(["cat"], "has the label 1; expected 0 to 0"), (["cat", ["dog"]], "class names that are no text")],
)
def test_damaged_classes_of_a_data_set_on_disk(names: list[Any], told: str, tmp_path: Path) -> None:
    """A list of class names that was cut raised an IndexError, names of other types an AttributeError."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    rows = {"image": [Image.new("RGB", (4, 4))] * 2, "label": [0, 1]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "data")
    path = tmp_path / "data" / "dataset_info.json"
    info = json.loads(path.read_text(encoding="utf-8"))
    info["features"]["label"]["names"] = names
    path.write_text(json.dumps(info), encoding="utf-8")
    with pytest.raises(OtptError, match=told):
        load_dataset(f"hf:{tmp_path / 'data'}")


def test_a_folder_with_links_in_a_circle_is_told(tmp_path: Path) -> None:
    """Asking whether the last of forty links is a folder raised an OSError."""
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "again").symlink_to(tmp_path / "cat")
    (tmp_path / "cat" / "file").symlink_to("file")
    with pytest.raises(OtptError, match="Cannot read the folder"):
        load_dataset(str(tmp_path))


# calibration files


@pytest.mark.parametrize(
    ("key", "value"),
    [("map", {"kind": "temperature", "parameters": {"temperature": 0.0}}), ("map", {"kind": "beta", "parameters": {}}),
     ("conformal", {}), ("for", {"classes": "ab"}), ("labels", -1), ("bins", {"before": {"counts": [1]}}),
     ("correct", "maybe"), ("confidences", [float("nan")]), ("origin", {"x": "\ud800"}), ("confidences", [0.5])],
)  # fmt: skip
def test_a_calibration_that_was_changed_and_sealed_again(key: str, value: Any, tmp_path: Path) -> None:
    p, y = labelled(150, seed=41)
    content = fit_calibration(p, y, facts()).as_dict() | {key: value}
    try:
        checksum = _checksum(content)
    except ValueError:
        checksum = "sha256:" + 64 * "0"
    path = tmp_path / "cal.json"
    path.write_text(json.dumps({**content, "checksum": checksum}), encoding="utf-8")
    with pytest.raises(OtptError, match="is damaged"):
        read_calibration(path)


def test_a_calibration_without_scores_has_every_class_in_its_sets(tmp_path: Path) -> None:
    """It raised a ValueError of numpy's."""
    p, y = labelled(150, seed=41)
    content = fit_calibration(p, y, facts()).as_dict()
    content["conformal"]["scores"] = {kind: {} for kind in content["conformal"]["scores"]}
    path = tmp_path / "cal.json"
    path.write_text(json.dumps({**content, "checksum": _checksum(content)}), encoding="utf-8")
    answer = Calibrated(read_calibration(path), coverage=0.9).answer(p[0])
    assert answer.classes is not None
    assert sorted(answer.classes) == list(range(p.shape[1]))


# run folders


def changed(folder: Path, change: Any) -> Path:
    """A run, with a change to its configuration."""
    Run.create(folder, config())
    content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    change(content)
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.parametrize("way", ["../outside", "/etc", "..", ".", "", "a/b", "a\\b", "\0", 7])
@pytest.mark.parametrize("of_column", [False, True])
def test_a_run_does_not_lead_out_of_its_folder(way: Any, of_column: bool, tmp_path: Path) -> None:
    """otpt metrics wrote its files, and tidying deleted shards, wherever config.json said."""

    def change(content: Any) -> None:
        dataset = content["datasets"][0]
        (dataset["columns"][0] if of_column else dataset)["folder"] = way

    with pytest.raises(OtptError, match="is damaged"):
        Run(changed(tmp_path / "run", change))


def test_a_link_out_of_a_run_is_refused(tmp_path: Path) -> None:
    folder = changed(tmp_path / "run", lambda _: None)
    (tmp_path / "outside").mkdir()
    (folder / "tiny").symlink_to(tmp_path / "outside")
    with pytest.raises(OtptError, match="leads out of it"):
        Run(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("datasets"),
        lambda content: content["numbers"].update(shard_size=0),
        lambda content: content["datasets"][0].pop("classes"),
        lambda content: content["datasets"][0]["columns"][0].update(images={"x": 3}),
        lambda content: content["datasets"][0]["columns"][0].update(images={"0": 10**18}),
        lambda content: content["datasets"][0]["columns"][0].update(method="unknown"),
        lambda content: content["methods"]["tpt"].update(objectives={"entropy": "x"}),
        lambda content: content.update(commands=[3]),
    ],
)
def test_a_damaged_configuration_of_a_run(change: Any, tmp_path: Path) -> None:
    with pytest.raises(OtptError, match="is damaged"):
        Run(changed(tmp_path / "run", change))


def test_an_empty_range_of_a_stream_is_not_walked_for_ever(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", config(["tda"], stream=["tda"]))
    folder = run.folder_of("tiny", 0, run.columns("tiny")[0])
    folder.mkdir(parents=True)
    (folder / "00000000-00000000.parquet").write_bytes(b"")
    assert run.missing()


def test_rows_that_are_sealed_and_wrong_are_recomputed(tmp_path: Path) -> None:
    """Whoever knows the checksum can seal anything: classes that do not exist made the metrics fail."""
    from oracles.runs.runs_bench import MadeUp

    from otpt.runs.rows import ShardRows

    run = Run.create(tmp_path / "run", config(["tpt"], images=4))
    (item,) = run.missing()
    rows = ShardRows(item.columns[0], 7, save_probabilities=False)
    for index in range(4):
        rows.add(index, f"{index}", index, MadeUp(np.full(7, 1 / 7)))
    shard = rows.shard("tiny", 0, first=0, start=0)
    wrong = shard.table.set_column(2, "label", pa.array([99] * 4, pa.int32()))
    object.__setattr__(shard, "table", wrong)
    run.write(shard)
    with pytest.warns(UserWarning, match="'label' has values outside"):
        scores = score_run(run)
    assert scores[0].metrics is None
    assert run.missing() == [item]
