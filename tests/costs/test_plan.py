"""Plans: which work methods share, devices, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from oracles.command import run

from otpt import OtptError
from otpt.costs import (
    Cost,
    Speed,
    find_device,
    image_cost,
    list_devices,
    memory_of,
    plan_dataset,
    read_architecture,
    read_speed,
    text_forward,
    text_product,
    texts_of,
    write_speed,
)
from otpt.costs.devices import name_of
from otpt.costs.texts import typical_texts
from otpt.methods import get_methods
from otpt.prompts import MEMORY_BUDGET

MODEL = read_architecture("ViT-B-16/openai")
TEXTS = texts_of(("cat", "dog", "red panda"))
FORWARD = text_forward(MODEL, TEXTS).flops
PRODUCT = text_product(MODEL, TEXTS, budget=MEMORY_BUDGET).flops


def test_tokens_are_those_of_the_sentences() -> None:
    """[start, a, photo, of, a] and then: name, full stop, end."""
    assert (TEXTS.prefix, TEXTS.tails, TEXTS.context) == (5, (3, 3, 4), 4)
    assert typical_texts(100).classes == 100


@pytest.mark.parametrize(
    ("names", "products", "forwards", "views"),
    [
        (["zero-shot"], 0, 0, 1),
        (["tpt"], 1, 1, 64),
        (["zero-shot", "tpt", "c-tpt", "o-tpt"], 1, 3, 64),  # one gradient of the entropy, a forward pass each
        (["tpt", "tpt+ts"], 1, 1, 64),  # what differs after tuning alone is tuned once
        (["zero", "mta"], 0, 0, 64),
        (["tpt+moments"], 2, 2, 64),  # two steps
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else str(value),
)
def test_what_methods_share(names: list[str], products: int, forwards: int, views: int) -> None:
    cost = image_cost(MODEL, TEXTS, get_methods(names))
    assert (cost.passes, cost.views) == ({"products": products, "forwards": forwards}, views)
    assert cost.text.flops == pytest.approx(products * PRODUCT + forwards * FORWARD)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}", "'model_cfg' is missing"),
        ("[]", "list indices"),
        ('{"model_cfg": {"embed_dim": "wide", "vision_cfg": {"image_size": 8}, "text_cfg": {}}}', "'wide'"),
        ('{"model_cfg": {"embed_dim": 8, "vision_cfg": {"image_size": 8}, "text_cfg": 7}}', "'get'"),
        ("[" * 100_000, "is damaged: it is not JSON"),
        ("{", "is damaged: it is not JSON"),
    ],
)
def test_folders_without_a_configuration_of_open_clip(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "open_clip_config.json").write_text(text, encoding="utf-8")
    with pytest.raises(OtptError, match=told):
        read_architecture(str(tmp_path))


def test_streams_use_the_features_of_the_other_methods() -> None:
    methods = get_methods(["o-tpt", "tda"])
    cached, anew = (image_cost(MODEL, TEXTS, methods, cached=cached) for cached in (True, False))
    assert cached.image.flops < anew.image.flops
    assert cached.synchronisations > image_cost(MODEL, TEXTS, methods[:1]).synchronisations
    with pytest.raises(OtptError, match="The cost of 'maple' is not known: MaPLe runs a network of its own"):
        image_cost(MODEL, TEXTS, get_methods(["maple"]))


def test_memory_is_near_what_was_measured() -> None:
    """docs/performance.md: 2.2 GB with 100 classes, 3.5 GB with 1000, RN50 1.7 GB."""
    for name, classes, measured in (("ViT-B-16", 100, 2.2e9), ("ViT-B-16", 1000, 3.5e9), ("RN50", 100, 1.7e9)):
        predicted = memory_of(read_architecture(name), typical_texts(classes), threads=2).bytes
        assert predicted == pytest.approx(measured, rel=0.2)


def test_a_gpu_takes_the_longest_of_computing_moving_and_starting() -> None:
    device = find_device("a6000")
    assert device.seconds(Cost(products=38.7e12 / 2)) == pytest.approx(1.0)
    assert device.seconds(Cost(bytes=768e9 / 2)) == pytest.approx(1.0)
    assert device.seconds(Cost(operators=1e6)) == pytest.approx(6.0)
    assert device.seconds(Cost(products=154.8e12 / 2), "bf16") == pytest.approx(1.0)
    with pytest.raises(OtptError, match="'t4' has no bf16; expected float32 or fp16"):
        find_device("t4").seconds(Cost(), "bf16")
    assert name_of("NVIDIA A100-SXM4-80GB") == "a100"
    assert name_of("NVIDIA GeForce RTX 4090") == "rtx-4090"
    assert name_of("Voodoo 3") is None


def test_seconds_on_a_cpu_are_near_the_documented_ones() -> None:
    """docs/performance.md: 9.67 s per image with ViT-B/16 and 100 classes on 2 cores."""
    device = find_device("cpu", cores=2)
    planned = plan_dataset(
        MODEL, typical_texts(100), get_methods(["o-tpt"]), device, dataset="own", images=3600, machines=2
    )
    assert planned.seconds == pytest.approx(9.67, rel=0.2)
    assert planned.hours == pytest.approx(planned.seconds / 2)


def test_the_measured_speed_is_kept(tmp_path: Path) -> None:
    path, speed = tmp_path / "speed.json", Speed("a processor", 2, 1e11, 9e10, 1e10, 3e-3, 1e-3)
    assert read_speed(path) is None
    write_speed(path, speed)
    assert read_speed(path) == speed
    path.write_text('{"threads": "many"}')
    with pytest.raises(OtptError, match=r"measured speed .* is damaged; delete it, or run 'otpt doctor --speed' again"):
        read_speed(path)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "plan", "dtd", "cars", "--device", "a6000", "--methods", "tpt", "o-tpt")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["data", "set", "images", "classes", "TFLOP/image", "text", "%", "s/image", "time", "GB"]
    assert lines[1].split()[:3] == ["dtd", "1,692", "47"]
    assert "a prediction for NVIDIA RTX A6000 (50 % of the published peak and bandwidth)" in out
    assert "0.21 to 0.26 s per image, measured by its authors" in lines[-1]
    write_speed(tmp_path / "speed.json", Speed("a processor", 2, 2.7e11, 2e11, 2e10, 3e-3, 1e-3))
    command = (
        "plan",
        "--images",
        1000,
        "--class-count",
        10,
        "--cache",
        tmp_path,
        "--seeds",
        0,
        1,
        2,
        "--machines",
        2,
        "--json",
    )
    code, out, err = run(capsys, *command)
    assert (code, err) == (0, "")
    shown = json.loads(out)
    (row,) = shown["datasets"]
    assert shown["device"]["name"] == "this machine"
    assert shown["hours"] == pytest.approx(1000 * 3 * row["seconds"]["image"] / 2 / 3600)
    assert shown["flops"] == pytest.approx(1000 * 3 * sum(row["flops_per_image"].values()))


BAD = {
    (): "No data set was given; expected names such as 'dtd cars'",
    ("dtdd",): "Unknown data set 'dtdd'. Did you mean: dtd",
    ("dtd", "--device", "a600"): "Unknown device 'a600'. Did you mean: a6000",
    ("dtd", "--device", "nope"): "Unknown device 'nope'. Available: here, a6000, ",
    ("dtd", "--device", "a6000", "--precision", "int4"): "The device 'a6000' has no int4; expected float32 or",
    ("dtd", "--device", "cpu", "--achieved", "2"): "The achieved fraction is 2.0; expected a number above 0",
    ("dtd", "--device", "cpu", "--cores", "0"): "The number of cores is 0; expected 1 or more",
    ("dtd", "--device", "cpu", "--machines", "0"): "The number of machines is 0; expected 1 or more",
    ("dtd", "--device", "cpu", "--backbone", "ViT-B-61"): "Unknown architecture 'ViT-B-61'. Did you mean: ",
    ("dtd", "--backbone", "hf:openai/clip"): "The shapes of 'hf:openai/clip' are not known without loading it",
    ("--images", "5"): "A data set of your own needs both --images N and --class-count C",
    ("--images", "5", "--class-count", "1"): "The number of classes is 1; expected 2 or more",
}  # fmt: skip


@pytest.mark.parametrize("options", BAD, ids=lambda options: " ".join(options) or "nothing")
def test_bad_input(options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "plan", *options, "--cache", tmp_path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert BAD[options] in err


def test_every_device_has_what_a_plan_needs() -> None:
    assert {"a6000", "a100", "h100", "l4", "t4", "rtx-4090", "cpu"} <= set(list_devices())
    for name in list_devices():
        device = find_device(name)
        assert device.seconds(Cost(1e12, 1e12, 1e9, 10)) > 0
