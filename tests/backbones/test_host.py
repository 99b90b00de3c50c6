"""Loading changes nothing in the program around it: logging, constants of other libraries, and its records."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import huggingface_hub.constants
import open_clip
import open_clip.factory
import pytest
import timm  # noqa: F401
import torch
import transformers.utils.logging
from oracles.models.tiny import open_clip_local_dir, randomise, tiny_config

from otpt.backbones import load_backbone
from otpt.backbones.sources import quiet_transformers
from otpt.errors import OtptError

pytestmark = pytest.mark.slow

LOGGERS = ("", "huggingface_hub", "transformers", "open_clip", "timm")


def state() -> tuple[object, ...]:
    """Return what a library could change in its host."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    return (
        logging.root.manager.disable,
        tuple((logger.level, logger.disabled, logger.propagate, tuple(logger.filters)) for logger in loggers),
        tuple(tuple(logger.handlers) for logger in loggers),
        huggingface_hub.constants.HF_HUB_OFFLINE,
        transformers.utils.logging.get_verbosity(),
        transformers.utils.logging.is_progress_bar_enabled(),
    )


class Host:
    """Program that logs all the time in a thread of its own, and watches its state."""

    def __init__(self) -> None:
        self.before = state()
        self.changes: list[tuple[object, ...]] = []
        self.written = 0
        self.received: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._logger = logging.getLogger("host")
        self._handler = logging.Handler()
        self._handler.emit = lambda record: self.received.append(int(record.getMessage()))  # type: ignore[method-assign]

    def _run(self) -> None:
        while not self._stop.is_set():
            self._logger.log((logging.INFO, logging.WARNING, logging.ERROR)[self.written % 3], "%d", self.written)
            self.written += 1
            if (now := state()) != self.before:
                self.changes.append(now)
            time.sleep(0.0002)

    def __enter__(self) -> Host:
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False
        self._logger.addHandler(self._handler)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        self._logger.removeHandler(self._handler)

    def check(self) -> None:
        assert not self.changes
        assert state() == self.before
        assert self.written > 0
        assert self.received == list(range(self.written))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls of functions that change the logging of the process."""
    names: list[str] = []

    def note(owner: object, name: str) -> None:
        def call(*_: object, **__: object) -> None:
            names.append(name)

        monkeypatch.setattr(owner, name, call)

    monkeypatch.setattr(logging.root, "handlers", [])  # without handlers, logging.info() calls basicConfig
    note(logging, "disable")
    note(logging, "basicConfig")
    for name in ("set_verbosity", "disable_progress_bar", "enable_progress_bar"):
        note(transformers.utils.logging, name)
    return names


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Refuse connections, and return an empty cache of the Hugging Face hub."""

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(urllib.request, "getproxies", dict)
    cache = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    return cache


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model of open_clip and one of transformers."""
    folder = tmp_path_factory.mktemp("models")
    open_clip_local_dir(folder / "open_clip")
    common = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 96}
    clip = transformers.CLIPConfig(
        text_config={**common, "eos_token_id": 49407, "bos_token_id": 49406, "pad_token_id": 1},
        vision_config={**common, "image_size": 32, "patch_size": 8},
        projection_dim=24,
    )
    randomise(transformers.CLIPModel(clip)).save_pretrained(folder / "clip")
    # a start token that is not in the vocabulary, as in published models: transformers logs a warning
    siglip = transformers.SiglipConfig(
        text_config={**common, "vocab_size": 49408, "bos_token_id": 60000},
        vision_config={**common, "image_size": 32, "patch_size": 8},
    )
    randomise(transformers.SiglipModel(siglip)).save_pretrained(folder / "siglip")
    square = {"height": 32, "width": 32}
    processors = {
        "clip": {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32}, "crop_size": square},
        "siglip": {"image_processor_type": "SiglipImageProcessor", "size": square},
    }
    for name, content in processors.items():
        (folder / name / "preprocessor_config.json").write_text(json.dumps(content))
    return folder


def repository(cache: Path, name: str, files: dict[str, Path | str]) -> None:
    """Write files into a cache of the hub as if they had been downloaded."""
    place = cache / f"models--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("0" * 40)
    for file, content in files.items():
        target = place / "snapshots" / ("0" * 40) / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.read_bytes() if isinstance(content, Path) else content.encode())


@pytest.mark.parametrize("model", ["pocket", "open_clip", "clip", "siglip", "random"])
def test_loading_changes_nothing(
    model: str, folders: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "Tiny", tiny_config())
    spec = {"pocket": "pocket", "random": "random:Tiny"}.get(model, str(folders / model))
    random = torch.random.get_rng_state()
    with Host() as host:
        load_backbone(spec, device="cpu")
    host.check()
    assert calls == []
    assert torch.equal(torch.random.get_rng_state(), random)
    written = capfd.readouterr()
    assert (written.out, written.err) == ("", "")


@pytest.mark.parametrize("spec", ["hf-hub:someone/something", "hf:someone/something", "ViT-B-16/openai"])
def test_failing_changes_nothing(spec: str, offline: Path, calls: list[str]) -> None:
    with Host() as host, pytest.raises(OtptError, match="cannot be reached"):
        load_backbone(spec, device="cpu")
    host.check()
    assert calls == []


def test_loading_in_two_threads_changes_nothing(folders: Path, calls: list[str]) -> None:
    specs = ["pocket", str(folders / "open_clip"), str(folders / "clip"), "local-dir:/no/such/folder"]
    failures: list[Exception] = []

    def load_all(order: list[str]) -> None:
        for spec in order:
            try:
                load_backbone(spec, device="cpu")
            except Exception as error:
                failures.append(error)

    with Host() as host:
        threads = [threading.Thread(target=load_all, args=(order,)) for order in (specs, specs[::-1])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    host.check()
    assert calls == []
    assert [type(error) for error in failures] == [OtptError, OtptError]


def test_a_cached_model_of_the_hub_is_loaded_without_a_connection(offline: Path, folders: Path) -> None:
    source = folders / "open_clip"
    repository(offline, "someone/tiny", {file.name: file for file in source.iterdir()})
    with Host() as host:
        backbone = load_backbone("hf-hub:someone/tiny", device="cpu")
    host.check()
    assert backbone.fingerprint == load_backbone(str(source), device="cpu").fingerprint
    assert backbone.architecture == "tiny"
    repository(offline, "someone/clip", {file.name: file for file in (folders / "clip").iterdir()})
    with Host() as host:
        found = load_backbone("hf:someone/clip", device="cpu")
    host.check()
    assert found.fingerprint == load_backbone(str(folders / "clip"), device="cpu").fingerprint


def test_a_cached_text_tower_of_the_hub_is_loaded_without_a_connection(
    offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bert = {"model_type": "bert", "vocab_size": 12, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "photo", "of", "cat", "dog", ".", "x"]
    files: dict[str, Path | str] = {"config.json": json.dumps(bert), "vocab.txt": "\n".join(words)}
    repository(offline, "someone/bert", files)
    config = tiny_config()
    text = {"hf_model_name": "someone/bert", "hf_tokenizer_name": "someone/bert", "context_length": 16}
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "Bert", {**config, "text_cfg": text})
    with Host() as host:
        backbone = load_backbone("random:Bert", device="cpu")
    host.check()
    ids = backbone.text.tokenize(["a photo of a cat.", "a dog"])
    assert ids[0, :8].tolist() == [2, 5, 6, 7, 5, 8, 10, 3]
    features = backbone.text.encode_embeddings(ids, backbone.text.embed(ids))
    assert features.shape == (2, 32)
    assert not torch.equal(features[0], features[1])


def test_records_of_other_threads_pass_while_transformers_is_quiet() -> None:
    logger = logging.getLogger("transformers.models")
    received: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: received.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("transformers").addHandler(handler)

    def in_thread(work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    try:
        with quiet_transformers():
            logger.warning("ours")
            in_thread(lambda: logger.warning("theirs"))
        logger.warning("later")
    finally:
        logging.getLogger("transformers").removeHandler(handler)
    assert received == ["theirs", "later"]
    assert handler.filters == []
