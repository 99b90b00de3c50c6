"""Methods that carry state from image to image: a fixed order, resumed from its beginning, and the others untouched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles.runs.evaluation_bench import (
    NAMES,
    backbone,
    backbone_on,
    computed,
    dataset,
    files,
    image,
    image_number,
    settings,
    small_dataset,
)
from oracles.runs.growing_bench import STREAM

from otpt import Classifier, OtptError, adaptation, load_plugin
from otpt.evaluation import evaluate
from otpt.evaluation.evaluator import stream_order
from otpt.images import open_with_digest
from otpt.methods import get_method
from otpt.methods.state import prompt_state
from otpt.plugins import snapshot
from otpt.runs import Run
from otpt.views import ViewRecipe, make_views
from otpt.workers import ProcessPool

pytestmark = pytest.mark.slow

METHODS = ["zero-shot", STREAM, "o-tpt"]
IDS = [f"p/{i}" for i in range(11)]


def run(folder: Path, methods: list[str] = METHODS, images: int = 11, **changes: Any) -> Any:
    options = {key: changes.pop(key) for key in ("cache", "retry_unreadable") if key in changes}
    data = changes.pop("data", None) or dataset(images)
    return evaluate(data, backbone(), settings(methods=methods, **changes), out=folder, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stream") / "run"
    run(folder, seeds=[0, 1])
    return folder


def rows(folder: Path, seed: int = 0, method: str = STREAM) -> list[dict[str, Any]]:
    """The rows of a method, shard by shard."""
    shards = Run(folder).shards("tiny", seed, ("a photo of a", method))
    return [row for each in shards for row in each.table.to_pylist()]


def literal(order: list[int]) -> np.ndarray:
    """Probabilities (N, C) of the running mean, image by image, in float64."""
    model = backbone()
    text = prompt_state(model, NAMES)
    found, total = [], torch.zeros(len(NAMES), dtype=torch.float64)
    for count, index in enumerate(order, start=1):
        opened = image(index)
        recipe = ViewRecipe(n_views=1)
        views = make_views(opened, recipe, model.preprocessing, seed=0, image_id=open_with_digest(opened)[1])
        features = model.encode_pixels(torch.from_numpy(views)).double()
        logits = (text.logit_scale * features @ text.text_features.double().T)[0]
        total += logits
        found.append(torch.softmax(logits - 0.5 * total / count, dim=0).numpy())
    return np.stack(found)


def test_the_order_is_a_permutation_that_the_seed_decides(finished: Path) -> None:
    orders = [stream_order(seed, IDS) for seed in (0, 1)]
    for seed, order in enumerate(orders):
        assert sorted(order) == list(range(11))
        assert [image_number(row) for row in rows(finished, seed)] == order
        assert [row["index"] for row in rows(finished, seed, "o-tpt")] == list(range(11))
    assert orders[0] != orders[1]
    assert orders[0] != list(range(11))
    assert stream_order(0, IDS) == orders[0]


def test_numbers_are_those_of_the_images_one_after_the_other(finished: Path) -> None:
    for seed in (0, 1):
        found = rows(finished, seed)
        expected = literal([image_number(row) for row in found])
        np.testing.assert_allclose([row["confidence"] for row in found], expected.max(axis=1), rtol=1e-4)
        assert [row["prediction"] for row in found] == expected.argmax(axis=1).tolist()
    first, second = ({image_number(row): row["confidence"] for row in rows(finished, seed)} for seed in (0, 1))
    assert first != second


def test_methods_of_single_images_in_the_same_run_are_untouched(finished: Path, tmp_path: Path) -> None:
    run(tmp_path / "run", ["zero-shot", "o-tpt"], seeds=[0, 1])
    alone = files(tmp_path / "run", suffix=".parquet")
    together = files(finished, suffix=".parquet")
    assert alone == {name: data for name, data in together.items() if STREAM not in name}
    run(tmp_path / "run", METHODS, seeds=[0, 1])
    assert files(tmp_path / "run", suffix=".parquet") == together


def test_nothing_depends_on_threads(finished: Path, tmp_path: Path) -> None:
    torch.set_num_threads(3)
    run(tmp_path / "run", seeds=[0, 1])
    assert files(tmp_path / "run") == files(finished)


@pytest.mark.parametrize("after", [1, 6])
def test_stopped_and_resumed_it_has_the_same_bytes(tmp_path: Path, after: int) -> None:
    def stop() -> None:
        if sum(images) > after:
            raise KeyboardInterrupt

    run(tmp_path / "whole", [STREAM])
    with computed(stop) as images, pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", [STREAM])
    with computed() as images:
        run(tmp_path / "run", [STREAM])
    assert sum(images) == 11  # the state is that of all images before
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_unreadable_images_leave_the_state_alone_and_a_retry_repeats_the_stream(tmp_path: Path) -> None:
    broken = stream_order(0, IDS)[2]
    images: list[Any] = [image(i) for i in range(11)]
    images[broken] = b"torn"
    result = run(tmp_path / "run", data=dataset(images=images))
    assert result.unreadable == 1
    found = rows(tmp_path / "run")
    assert found[2]["error"]
    assert found[2]["confidence"] is None
    good = [row for row in found if not row["error"]]
    expected = literal([image_number(row) for row in good]).max(axis=1)
    np.testing.assert_allclose([row["confidence"] for row in good], expected, rtol=1e-4)
    assert run(tmp_path / "run", retry_unreadable=True).unreadable == 0
    run(tmp_path / "never")
    assert files(tmp_path / "run") == files(tmp_path / "never")


def test_other_images_are_refused_in_one_sentence_and_other_seeds_are_not(tmp_path: Path) -> None:
    run(tmp_path / "run", [STREAM], limit=5)
    before = files(tmp_path / "run")
    for limit in (3, 7):
        words = f"'running-mean' on 'tiny': order is '5 images, permuted by the seed' there and '{limit} images"
        with pytest.raises(OtptError, match=words):
            run(tmp_path / "run", [STREAM], limit=limit)
    assert files(tmp_path / "run") == before
    run(tmp_path / "run", [STREAM], limit=5, seeds=[4])
    run(tmp_path / "whole", [STREAM], limit=5, seeds=[0, 4])
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_each_prompt_and_method_has_a_state_of_its_own(tmp_path: Path) -> None:
    prompts = ["a photo of a", "an example of"]
    methods = [STREAM, f"{STREAM}+sals"]
    run(tmp_path / "both", methods, images=6, prompts=prompts)
    together = sorted(files(tmp_path / "both", suffix=".parquet").values())
    alone = []
    for number, prompt in enumerate(prompts):
        for method in methods:
            folder = tmp_path / f"{number}-{method}"
            run(folder, [method], images=6, prompts=[prompt])
            alone += files(folder, suffix=".parquet").values()
    assert sorted(alone) == together


def test_numbers_are_those_published_for_the_data_set(tmp_path: Path) -> None:
    """Of Cars, whose name is enough; another data set gets those of all others."""
    given = [get_method("tda").override({"cache-alpha": 1, "cache-beta": 7})]
    given += [get_method("dpe").override({"cache-alpha": 3, "cache-beta": 7, "dpe-rate": 1e-4, "dpe-contrast": 1.5})]
    cases = {"named": (["tda", "dpe"], "cars"), "given": (given, "mine"), "others": (["tda", "dpe"], "mine")}
    found = {}
    for folder, (methods, name) in cases.items():
        run(tmp_path / folder, methods, data=dataset(11, name))
        rows = Run(tmp_path / folder).to_pandas().sort_values(["method", "index"])
        found[folder] = rows.confidence.tolist()
    assert found["named"] == found["given"] != found["others"]


PLUGIN = '''
import otpt

@otpt.adaptation
def slow_start(logits, state):
    """Logits that grow sharper from image to image."""
    state["seen"] = state.get("seen", 0) + 1
    return logits * (1 - 0.9 / state["seen"])
'''


@pytest.mark.long
def test_worker_processes_share_a_run_with_streams(tmp_path: Path) -> None:
    """Each stream is one process's, while the other ones go on with what is left."""
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN)
    load_plugin(plugin)
    chosen = settings(methods=["zero-shot", "slow-start", "tpt"], shard_size=2, seeds=(0, 1))
    for name, pool in (("local", None), ("several", ProcessPool(2))):
        given = {"pool": pool, "device": "cpu", "plugins": [plugin]}
        evaluate(small_dataset(), backbone_on, chosen, out=tmp_path / name, **given)
    assert files(tmp_path / "several") == files(tmp_path / "local")
    streams = [item for item in Run(tmp_path / "several").items() if item.in_order]
    assert len({item.lock_name for item in streams}) == 2
    digest = Run(tmp_path / "several").config.methods["slow-start"]["own_functions"]["slow-start"]
    assert len(digest) == 16


def test_a_method_that_sees_all_images_first(tmp_path: Path) -> None:
    """Each image is predicted once, after all of them were seen; a classifier, which has no set, refuses."""
    restore = snapshot()
    try:

        @adaptation(needs_views=False)
        def whole_set(logits: torch.Tensor, state: dict[str, Any], first_pass: bool) -> Any:
            state["seen"] = state.get("seen", 0) + int(first_pass)
            return logits, {"seen": state["seen"]}

        images: list[Any] = [image(i) for i in range(5)]
        images[3] = b"torn"
        run(tmp_path / "run", ["whole-set"], data=dataset(images=images))
        found = rows(tmp_path / "run", method="whole-set")
        assert [image_number(row) for row in found] == stream_order(0, IDS[:5])
        assert [row.get("seen") for row in found if not row["error"]] == [4.0] * 4
        assert Run(tmp_path / "run").datasets[0].columns[0].order == (
            "5 images, permuted by the seed, all seen before the first"
        )
        with pytest.raises(OtptError, match="sees all images of a set"):
            Classifier(backbone(), "whole-set")
    finally:
        restore()
