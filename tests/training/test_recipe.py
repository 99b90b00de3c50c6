"""The recipe of ``pocket`` in small: synthetic drawings, random weights, a few steps."""

from __future__ import annotations

import doctest
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch

pytest.importorskip("resvg_py")

from otpt.backbones.pocket import TOKENS, expand_state
from otpt.backbones.pocket.trunk import SIZE, WIDTH
from training import names
from training.artists import Drawing
from training.augment import Augmentation, augment
from training.captions import PROMPT, TEMPLATES, Captions
from training.export import compact_state, rescale_residual
from training.model import ImageTower, build_model, encode_texts
from training.parallel import processes, rank, run_in_processes, sum_in_place
from training.rasterise import SIDE, Drawings, rasterise
from training.start import class_directions, discriminant, head_of, start_from_discriminant
from training.texts import fit_texts
from training.train import Recipe, Trainer

EMOJI = [
    names.Emoji("1F534", "red circle", "symbols", ("circle", "red")),
    names.Emoji("1F7E6", "blue square", "symbols", ("square",)),
    names.Emoji("1F7E2", "green circle", "symbols", ()),
    names.Emoji("1F1EB-1F1F7", "flag of France", "flags", ("FR", "flag")),
]
BODIES = [
    '<circle cx="8" cy="8" r="7" fill="red"/>',
    '<rect x="2" y="2" width="12" height="12" fill="blue"/>',
    '<circle cx="8" cy="8" r="7" fill="green" fill-opacity="0.5"/>',
    '<rect y="3" width="16" height="10" fill="blue"/><rect x="11" y="3" width="5" height="10" fill="red"/>',
]


def _svg(body: str) -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">{body}</svg>'


@pytest.fixture(scope="module")
def drawings() -> Drawings:
    pixels = [rasterise(Drawing("a", entry.code, _svg(body))) for entry, body in zip(EMOJI, BODIES, strict=True)]
    assert all(values is not None for values in pixels)
    return Drawings(
        np.stack([values for values in pixels if values is not None] * 3),
        np.array([names.plain_code(entry.code) for entry in EMOJI] * 3),
        np.array(["a", "b-monotone", "c"]).repeat(4),
    )


def test_doctests() -> None:
    tried = doctest.testmod(names)
    assert tried.attempted > 0
    assert tried.failed == 0


def test_skin_tones_are_recognised() -> None:
    assert names.has_skin_tone("1F44B-1F3FD")
    assert not names.has_skin_tone("1F44B")
    assert names.looks_like_skin_tone("child-medium")
    assert names.looks_like_skin_tone("man-climbing-tone1")
    assert not names.looks_like_skin_tone("lighthouse")
    assert names.plain_code("2764-fe0f") == "2764"


def test_raster_is_multiplied_by_alpha(drawings: Drawings) -> None:
    red, _, faint, _ = drawings.pixels[:4]
    assert red.shape == (4, SIDE, SIDE)
    assert red[:, SIDE // 2, SIDE // 2].tolist() == [255, 0, 0, 255]
    assert red[:, 0, 0].tolist() == [0, 0, 0, 0]
    alpha = int(faint[3, SIDE // 2, SIDE // 2])
    assert abs(alpha - 128) <= 1
    assert abs(int(faint[1, SIDE // 2, SIDE // 2]) - 128 * alpha / 255) <= 2
    assert rasterise(Drawing("a", "0", _svg(""))) is None


NOTHING = Augmentation(
    scale=(1.0, 1.0), turn=0, stretch=0, crop=0, flip=0, outline=0, lines=0, grey=0, jitter=0, noise=0, blur=0
)


def test_no_augmentation_is_a_plain_resize() -> None:
    rng = torch.Generator().manual_seed(0)
    smooth = torch.nn.functional.interpolate(torch.rand(2, 3, 4, 4), SIDE, mode="bicubic").clamp(0, 1)
    opaque = torch.cat([smooth, torch.ones(2, 1, SIDE, SIDE)], 1)
    resized = augment((opaque * 255).byte(), SIZE, replace(NOTHING, scale=(1.2, 1.2)), rng)
    cut = round(SIDE * (1 - 1 / 1.2) / 2)
    wanted = torch.nn.functional.interpolate(opaque[:, :3, cut:-cut, cut:-cut], SIZE, mode="bilinear")
    middle = slice(12, -12)  # the place is drawn too, by up to 5 % of the side
    difference = (resized - wanted)[..., middle, middle].abs().mean()
    assert difference < 0.06
    assert (resized - wanted.flip(-1))[..., middle, middle].abs().mean() > 2 * difference


def test_augmentation_is_repeatable_bounded_and_varied(drawings: Drawings) -> None:
    pixels = torch.from_numpy(drawings.pixels)
    first, again = (augment(pixels, SIZE, Augmentation(), torch.Generator().manual_seed(5)) for _ in "ab")
    other = augment(pixels, SIZE, Augmentation(), torch.Generator().manual_seed(6))
    assert torch.equal(first, again)
    assert first.shape == (12, 3, SIZE, SIZE)
    assert 0 <= first.min() <= first.max() <= 1
    assert (first - other).abs().mean() > 0.05


def test_lines_only_leaves_no_colour(drawings: Drawings) -> None:
    how = replace(NOTHING, lines=1.0)
    images = augment(torch.from_numpy(drawings.pixels[:2]), SIZE, how, torch.Generator().manual_seed(0))
    centre = images[:, :, SIZE // 2 - 2 : SIZE // 2 + 2, SIZE // 2 - 2 : SIZE // 2 + 2]
    assert not (centre[0, 0] - centre[0, 1] > 0.9).any()  # the disc is no longer red
    assert images.amin((1, 2, 3)).max() < 0.3  # but it has a dark outline


@pytest.fixture(scope="module")
def captions() -> Captions:
    return Captions(EMOJI)


@pytest.fixture(scope="module")
def model() -> open_clip.CLIP:
    torch.manual_seed(0)
    return build_model(pretrained=False).eval()


def test_compact_ids_are_clips_tokens(captions: Captions) -> None:
    text = PROMPT.format("red circle")
    tokenizer = open_clip.tokenizer.SimpleTokenizer()
    ids = tokenizer([text])
    assert torch.equal(captions.rows[captions.compact(ids)], ids)
    assert torch.equal(captions.compact(ids).argmax(-1), ids.argmax(-1))
    assert captions.prompts().shape == (len(EMOJI), 77)
    for template in TEMPLATES:  # every caption that can be drawn has its tokens
        for entry in EMOJI:
            for words in (entry.name, *(f"{entry.name}, {keyword}" for keyword in entry.keywords)):
                captions.compact(tokenizer([template.format(words)]))


@torch.no_grad()
def test_towers_are_open_clips(model: open_clip.CLIP) -> None:
    ids = open_clip.tokenizer.SimpleTokenizer()(["a photo of a red circle.", "a dog", "flag of Papua New Guinea", "x"])
    assert torch.allclose(encode_texts(model, ids), model.encode_text(ids, normalize=True), atol=1e-5)
    pixels = torch.rand(2, 3, SIZE, SIZE)
    own = ImageTower(model, frozen=2).eval()(pixels)
    assert torch.allclose(own, model.encode_image((pixels - 0.5) / 0.5, normalize=True), atol=1e-5)


def test_frozen_stages_keep_weights_and_statistics() -> None:
    fresh = build_model(pretrained=False, tokens=8)
    before = {name: value.clone() for name, value in fresh.visual.trunk.state_dict().items()}
    tower = ImageTower(fresh, frozen=2).train()
    tower(torch.rand(4, 3, SIZE, SIZE)).sum().backward()
    after = fresh.visual.trunk.state_dict()
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed
    assert all(name.startswith(tuple(f"patch_embed.stages.{stage}" for stage in range(2, 7))) for name in changed)
    assert fresh.visual.trunk.patch_embed.stem.weight.grad is None


@torch.no_grad()
def test_stored_model_is_the_trained_one(captions: Captions, model: open_clip.CLIP) -> None:
    state = {name: value.clone() for name, value in model.state_dict().items()}
    small = state | {TOKENS: state[TOKENS][captions.rows]}
    stored = compact_state(rescale_residual(small, 3.0), captions.rows)
    assert {value.dtype for name, value in stored.items() if "running" not in name} <= {
        torch.float16,
        torch.int32,
        torch.int64,
    }
    loaded = build_model(pretrained=False).eval()
    missing, unexpected = loaded.load_state_dict(expand_state(stored, 49408), strict=False)
    assert not unexpected
    assert set(missing) <= {"attn_mask"}
    ids = open_clip.tokenizer.SimpleTokenizer()([PROMPT.format(entry.name) for entry in EMOJI])
    assert torch.allclose(encode_texts(loaded, ids), encode_texts(model, ids), atol=2e-2)
    assert (loaded.token_embedding.weight[ids[0, 1]] / model.token_embedding.weight[ids[0, 1]]).median() == (
        pytest.approx(3.0, rel=1e-2)
    )


def test_discriminant_whitens_and_parts_the_classes() -> None:
    rng = torch.Generator().manual_seed(0)
    mixing = torch.randn(12, 12, generator=rng)
    means = 3 * torch.randn(5, 12, generator=rng)
    labels = torch.arange(5).repeat(200)
    features = (means[labels] + torch.randn(1000, 12, generator=rng)) @ mixing + 7
    weight, bias = discriminant(features, labels, 4)
    mapped = features @ weight.T + bias
    within = torch.cov(torch.cat([mapped[labels == k] - mapped[labels == k].mean(0) for k in range(5)]).T)
    assert torch.allclose(within / within.diagonal().mean(), torch.eye(4), atol=0.35)
    directions = class_directions(mapped, labels, 5)
    assert ((mapped @ directions.T).argmax(-1) == labels).float().mean() > 0.95


@torch.no_grad()
def test_start_is_the_discriminant(model: open_clip.CLIP) -> None:
    fresh = build_model(pretrained=False, tokens=8).eval()
    tower, labels = ImageTower(fresh), torch.arange(10).repeat(8)
    maps = tower.maps(torch.rand(80, 3, SIZE, SIZE)).mean((2, 3))
    start_from_discriminant(fresh.visual, maps, labels)
    pixels = torch.rand(3, 3, SIZE, SIZE)
    wanted = torch.nn.functional.normalize(head_of(fresh.visual, tower.maps(pixels).mean((2, 3))), dim=-1)
    assert torch.allclose(tower(pixels), wanted, atol=1e-5)


def _add_up(file: Path) -> None:
    values = [torch.full((2,), float(rank() + 1)), torch.tensor([[10.0 * rank()]])]
    sum_in_place(values)
    (file.parent / f"{rank()}.txt").write_text(f"{values[0].tolist()} {values[1].item()} {processes()}")


def test_processes_add_up(tmp_path: Path) -> None:
    run_in_processes(2, _add_up, tmp_path / "x")
    assert {(tmp_path / f"{number}.txt").read_text() for number in (0, 1)} == {"[3.0, 3.0] 10.0 2"}


@pytest.mark.equality
def test_training_learns_and_resumes(drawings: Drawings, tmp_path: Path) -> None:
    recipe = Recipe(
        epochs=2,
        named_epochs=1,
        epoch_images=12,
        batch=6,
        start_images=12,
        text_steps=8,
    )
    whole = Trainer(drawings, EMOJI, recipe, pretrained=False)
    whole.start()
    curve = [whole.run_epoch(0)]
    torch.save(whole.state(), tmp_path / "run.pt")
    curve.append(whole.run_epoch(1))
    assert all(np.isfinite(row["loss"]) for row in curve)
    resumed = Trainer(drawings, EMOJI, recipe, pretrained=False)
    resumed.resume(tmp_path / "run.pt")
    assert (resumed.epoch, resumed.step) == (1, 2)
    assert resumed.run_epoch(1)["loss"] == pytest.approx(curve[1]["loss"], rel=1e-4)
    assert resumed.step == whole.step == 4
    assert resumed.named
    assert whole.named
    for name, value in whole.average.state_dict().items():
        assert torch.allclose(resumed.average.state_dict()[name], value, atol=1e-4), name


def test_named_directions_are_texts_and_stay(drawings: Drawings) -> None:
    recipe = Recipe(epochs=2, named_epochs=1, epoch_images=12, batch=6, start_images=12, text_steps=3)
    trainer = Trainer(drawings, EMOJI, recipe, pretrained=False)
    trainer.start()
    before = trainer.directions.detach().clone()
    trainer.run_epoch(0)
    assert not trainer.named
    assert not torch.equal(trainer.directions, before)  # learned
    trainer.run_epoch(1)
    ids = trainer.captions.draw(range(len(EMOJI)), random.Random(1))  # seed 0, epoch 1
    with torch.no_grad():
        assert torch.allclose(encode_texts(trainer.model, ids), trainer.directions, atol=1e-6)
        assert torch.allclose(encode_texts(trainer.average, ids), trainer.average_directions, atol=1e-6)


def test_text_tower_learns_the_directions(captions: Captions) -> None:
    torch.manual_seed(0)
    fresh = build_model(pretrained=False, tokens=len(captions.rows))
    image = {name: value.clone() for name, value in fresh.visual.state_dict().items()}
    targets = torch.nn.functional.normalize(torch.randn(len(EMOJI), WIDTH), dim=-1)
    fit_texts(fresh, captions, targets, steps=25, rate=2e-3)
    with torch.no_grad():
        texts = encode_texts(fresh, captions.prompts())
    assert torch.equal((texts @ targets.T).argmax(-1), torch.arange(len(EMOJI)))
    assert all(torch.equal(value, image[name]) for name, value in fresh.visual.state_dict().items())


def test_schedule() -> None:
    recipe = Recipe(epochs=10, named_epochs=5)
    assert [recipe.rate(done) for done in (0, 5, 7.5, 10)] == [1.0, 1.0, 0.5, 0.0]
