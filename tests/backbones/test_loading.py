"""``load_backbone``: every form of naming a model, and every way of naming it wrong."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from pathlib import Path

import open_clip.factory
import pytest
import torch
from open_clip import CLIP
from oracles.models.tiny import (
    open_clip_local_dir,
    open_clip_safetensors,
    openai_archive,
    tiny_backbone,
    tiny_clip,
    tiny_clip_like,
    tiny_config,
    tokenizer,
)
from safetensors.torch import load_file, save_file

from otpt.backbones import ModelEntry, Parts, QuickGeluWarning, list_models, load_backbone, register_source
from otpt.backbones.sources import SOURCES
from otpt.errors import OtptError

pytestmark = pytest.mark.slow

TEXTS = ["a photo of a cat.", "a photo of a red panda."]


def assert_same_model(spec: str, model: CLIP, **options: object) -> None:
    backbone = load_backbone(spec, device="cpu", **options)  # type: ignore[arg-type]
    pixels = torch.randn(3, 3, backbone.preprocessing.size, backbone.preprocessing.size)
    torch.testing.assert_close(
        backbone.encode_pixels(pixels), model.encode_image(pixels, normalize=True), rtol=0, atol=1e-5
    )
    ids = backbone.text.tokenize(TEXTS)
    features = backbone.text.encode_embeddings(ids, backbone.text.embed(ids))
    torch.testing.assert_close(features, model.encode_text(ids), rtol=0, atol=1e-5)
    assert backbone.name == spec
    assert backbone.logit_scale == pytest.approx(100, abs=1e-3)
    assert backbone.text.causal is not None


@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_openai_archive(tmp_path: Path, kind: str) -> None:
    model = openai_archive(tmp_path / "ViT.pt", kind)
    assert_same_model(str(tmp_path / "ViT.pt"), model)
    backbone = load_backbone(str(tmp_path / "ViT.pt"), device="cpu")
    assert backbone.family == kind
    assert backbone.text.causal is not None
    assert backbone.text.causal.activation == "quick_gelu"
    weight = backbone.text.causal.layers[0].mlp.c_fc.weight
    assert weight.dtype == torch.float32
    assert torch.equal(weight, weight.half().float())  # float16-rounded values, kept as they are


def test_safetensors_and_state_dict(tmp_path: Path) -> None:
    model = open_clip_safetensors(tmp_path / "m.safetensors", "resnet")
    torch.save({"state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}}, tmp_path / "m.pt")
    assert_same_model(str(tmp_path / "m.safetensors"), model, quick_gelu=True)
    assert_same_model(str(tmp_path / "m.pt"), model, quick_gelu=True)


def test_local_dir_by_prefix_and_by_path(tmp_path: Path) -> None:
    model = open_clip_local_dir(tmp_path / "folder")
    assert_same_model(f"local-dir:{tmp_path}/folder", model)
    assert_same_model(f"{tmp_path}/folder/", model)


def test_preprocessing_comes_from_the_folder(tmp_path: Path) -> None:
    open_clip_local_dir(tmp_path)
    config = json.loads((tmp_path / "open_clip_config.json").read_text())
    config["preprocess_cfg"] = {
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
        "interpolation": "bilinear",
        "resize_mode": "squash",
    }
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    preprocessing = load_backbone(str(tmp_path), device="cpu").preprocessing
    assert preprocessing.size == 32
    assert preprocessing.mean == (0.5, 0.5, 0.5)
    assert preprocessing.std == (0.25, 0.25, 0.25)
    assert (preprocessing.interpolation, preprocessing.resize_mode) == ("bilinear", "squash")


def test_same_weights_same_fingerprint_whatever_the_file(tmp_path: Path) -> None:
    model = openai_archive(tmp_path / "a.pt")
    save_file(model.state_dict(), tmp_path / "b.safetensors")
    torch.save(model.state_dict(), tmp_path / "c.pt")
    prints = {
        load_backbone(str(tmp_path / name), device="cpu", quick_gelu=True).fingerprint
        for name in ("a.pt", "b.safetensors", "c.pt")
    }
    prints.add(load_backbone(str(tmp_path / "a.pt"), device="cpu", precision="float64").fingerprint)
    assert len(prints) == 1
    assert len(prints.pop()) >= 16


def test_fingerprint_tells_weights_and_architecture_apart(tmp_path: Path) -> None:
    open_clip_safetensors(tmp_path / "a.safetensors")
    state = load_file(tmp_path / "a.safetensors")
    state["ln_final.bias"][0] += 1e-6
    save_file(state, tmp_path / "b.safetensors")
    first = load_backbone(str(tmp_path / "a.safetensors"), device="cpu", quick_gelu=True).fingerprint
    assert first != load_backbone(str(tmp_path / "b.safetensors"), device="cpu", quick_gelu=True).fingerprint
    assert first != load_backbone(str(tmp_path / "a.safetensors"), device="cpu", quick_gelu=False).fingerprint
    heads = tiny_backbone("vit").fingerprint  # the same seed gives the same tensors, but other heads
    assert {k: v.shape for k, v in tiny_clip("vit").state_dict().items()} == {k: v.shape for k, v in state.items()}
    assert first != heads


def test_gelu_that_cannot_be_seen_is_warned_of(tmp_path: Path) -> None:
    path = str(tmp_path / "m.safetensors")
    open_clip_safetensors(path)
    with pytest.warns(QuickGeluWarning, match=r"m\.safetensors .*; using GELU") as record:
        backbone = load_backbone(path, device="cpu")
    assert record[0].filename == __file__
    assert backbone.text.causal is not None
    assert backbone.text.causal.activation == "gelu"


def test_an_explicit_choice_against_the_weights_wins_and_is_warned_of(tmp_path: Path) -> None:
    path = str(tmp_path / "a.pt")
    openai_archive(path)
    with pytest.warns(QuickGeluWarning, match=r"a\.pt was trained with QuickGELU, but runs with GELU"):
        backbone = load_backbone(path, device="cpu", quick_gelu=False)
    assert backbone.text.causal is not None
    assert backbone.text.causal.activation == "gelu"
    open_clip_local_dir(tmp_path / "d")
    with pytest.warns(QuickGeluWarning, match=r"runs with GELU"):
        load_backbone(str(tmp_path / "d"), device="cpu", quick_gelu=False)


def test_a_named_architecture_against_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "a.pt")
    openai_archive(path)
    plain = {key: value for key, value in tiny_config(head_width=64).items() if key != "quick_gelu"}
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "Tiny", plain)
    with pytest.warns(QuickGeluWarning, match=r"has GELU, but .* trained with QuickGELU; using QuickGELU"):
        backbone = load_backbone(path, device="cpu", architecture="Tiny")
    assert backbone.architecture == "Tiny"
    assert backbone.text.causal is not None
    assert backbone.text.causal.activation == "quick_gelu"


def test_a_checkpoint_of_another_architecture(tmp_path: Path) -> None:
    open_clip_safetensors(tmp_path / "m.safetensors")
    with pytest.raises(OtptError, match=r"m\.safetensors"):
        load_backbone(str(tmp_path / "m.safetensors"), architecture="ViT-S-32", device="cpu")
    save_file({"conv.weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(OtptError, match=r"other\.safetensors .*; pass architecture="):
        load_backbone(str(tmp_path / "other.safetensors"), device="cpu")


def test_a_folder_whose_weights_do_not_fit(tmp_path: Path) -> None:
    open_clip_local_dir(tmp_path)
    state = load_file(tmp_path / "open_clip_model.safetensors")
    del state["visual.ln_pre.bias"]
    save_file(state, tmp_path / "open_clip_model.safetensors")
    with pytest.raises(OtptError, match=r"visual\.ln_pre\.bias") as error:
        load_backbone(str(tmp_path), device="cpu")
    assert "\n" not in str(error.value)


def test_a_plugin_registers_a_source() -> None:
    def load(name: str, quick_gelu: bool | None) -> Parts:
        return Parts(tiny_clip("vit", int(name)), tokenizer(), {}, "tiny")

    register_source("tiny:SEED", "random weights", load)
    try:
        assert load_backbone("tiny:3", device="cpu").name == "tiny:3"
        assert ModelEntry("tiny:SEED", "random weights") in list_models()
        with pytest.raises(OtptError, match="tiny:SEED"):
            load_backbone("tiny:", device="cpu")
    finally:
        del SOURCES["tiny"]


def test_nan_weights(tmp_path: Path) -> None:
    model = tiny_clip_like(tiny_clip("vit", head_width=64), "vit")
    state = model.state_dict()
    state["visual.proj"][0, 0] = float("nan")
    save_file(state, tmp_path / "m.safetensors")
    with pytest.raises(OtptError, match=r"corrupt: 1 values of visual.proj are not finite"):
        load_backbone(str(tmp_path / "m.safetensors"), device="cpu", quick_gelu=True)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("ViT-B-16", r"'ViT-B-16' needs a tag; available tags: openai, "),
        ("ViT-B-16/opnai", r"no weights tagged 'opnai'; available tags: openai, "),
        ("vit-b16/openai", r"Unknown backbone 'vit-b16/openai'.*Did you mean: ViT-B-16/openai"),
        ("RN5O/openai", r"Did you mean: RN50/openai"),
        ("ViT-B/16", r"Did you mean: ViT-B-16/openai"),
        ("ViT-M-16", r"open_clip has no weights for 'ViT-M-16'"),
        ("random:ViT-B-61", r"Unknown architecture 'ViT-B-61'.*Did you mean: .*ViT-B-16"),
        ("random:local-dir:/no/such/folder", r"Unknown architecture 'local-dir:/no/such/folder' of open_clip"),
        ("random:", r"A name is missing after 'random:'"),
        ("no-such-file.pt", r"There is no checkpoint file at 'no-such-file.pt'"),
        ("local-dir:/no/such/folder", r"There is no folder /no/such/folder"),
        ("zzzzzzzz", r"neither a file, a folder, nor a name of open_clip\. `otpt models`"),
    ],
)
def test_wrong_names(spec: str, message: str) -> None:
    with pytest.raises(OtptError, match=message):
        load_backbone(spec, device="cpu")


def test_wrong_folders(tmp_path: Path) -> None:
    with pytest.raises(OtptError, match=r"is not a model; expected open_clip_config.json"):
        load_backbone(str(tmp_path), device="cpu")
    with pytest.raises(OtptError, match=r"has no open_clip_config.json"):
        load_backbone(f"local-dir:{tmp_path}", device="cpu")
    (tmp_path / "open_clip_config.json").write_text("{}")
    torch.save({}, tmp_path / "m.pt")
    with pytest.raises(OtptError, match=r"open_clip_config\.json is not a model configuration"):
        load_backbone(str(tmp_path), device="cpu")
    open_clip_local_dir(tmp_path / "d")
    (tmp_path / "d" / "open_clip_model.safetensors").unlink()
    with pytest.raises(OtptError, match=r"[/\\\\]d"):
        load_backbone(str(tmp_path / "d"), device="cpu")
    with pytest.raises(OtptError, match=r"RN50"):
        load_backbone(str(tmp_path / "d"), architecture="RN50", device="cpu")


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ("ViT-B-16/openai", "ViT-B-16/openai"),
        ("RN50/cc12m", "RN50/cc12m"),
        ("hf-hub:someone/something", "hf-hub:someone/something"),
        ("hf:someone/something", "hf:someone/something"),
        ("random:roberta-ViT-B-32", "the text tower of roberta-ViT-B-32"),
    ],
)
def test_an_unreachable_hub_is_one_sentence_at_once(
    spec: str, what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(urllib.request, "getproxies", dict)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    start = time.monotonic()
    with pytest.raises(OtptError, match=rf"Cannot get {what}: .* cannot be reached; .*pass the file") as error:
        load_backbone(spec, device="cpu")
    assert "\n" not in str(error.value)
    assert "--backbone pocket-photo" in str(error.value)
    assert time.monotonic() - start < 20  # huggingface_hub alone would retry for half a minute


def test_random_weights_are_always_the_same_and_disturb_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "Tiny", tiny_config())
    state = torch.random.get_rng_state()
    first = load_backbone("random:Tiny", device="cpu")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (first.architecture, first.family, first.embed_dim) == ("Tiny", "vit", 32)
    assert load_backbone("random:Tiny", device="cpu").fingerprint == first.fingerprint


def test_devices_and_precisions() -> None:
    with pytest.raises(OtptError, match=r"Device 'gpu' is not available on this machine; available: auto, cpu"):
        load_backbone("random:RN50", device="gpu")
    with pytest.raises(OtptError, match=r"Unknown precision 'half'.*float32"):
        load_backbone("random:RN50", device="cpu", precision="half")
    absent = "cuda:99"
    with pytest.raises(OtptError, match=r"Device 'cuda:99' is not available on this machine; available: auto, cpu"):
        load_backbone("random:RN50", device=absent)


def test_a_folder_does_not_hide_the_embedded_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pocket").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_backbone("pocket", device="cpu").name == "pocket"
    with pytest.raises(OtptError, match="is not a model"):
        load_backbone("./pocket", device="cpu")
