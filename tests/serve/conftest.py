"""One service in this process, one as a process, and the classifier that both must agree with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from oracles.pages.servers import Server, image_file, serving

import otpt
from otpt.calibration import read_calibration
from otpt.data.classes import read_class_list
from otpt.serve import Service, create_app
from otpt.serve.config import read_folder

ANIMALS = ("cat", "dog", "red panda", "owl")
METHOD = "tpt"
VIEWS = 8


@pytest.fixture(scope="session")
def classifier() -> otpt.Classifier:
    """The classifier of the service's model, method and views."""
    return otpt.load("pocket", METHOD, device="cpu", views=VIEWS)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory, classifier: otpt.Classifier) -> tuple[Path, Path]:
    """A folder of class lists and one of calibrations."""
    classes, calibrations = tmp_path_factory.mktemp("classes"), tmp_path_factory.mktemp("calibrations")
    (classes / "animals.txt").write_text("\n".join(ANIMALS) + "\n", encoding="utf-8")
    (classes / "drawn.txt").write_text(
        "# prompt: a drawing of a\n# family: shift\n# augmix: off\napple\npear\n", encoding="utf-8"
    )
    classifier.set_classes(ANIMALS)
    images = [image_file(seed) for seed in range(24)]
    found = classifier.calibrate(images, [seed % len(ANIMALS) for seed in range(24)], maps=["temperature"])
    found.write(calibrations / "animals.json")
    classifier.use_calibrations([])
    return classes, calibrations


@pytest.fixture(scope="session")
def without_proxy() -> Iterator[None]:
    """For clients that heed the proxies of the environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("no_proxy", "127.0.0.1")
        yield


@pytest.fixture(scope="session")
def server(folders: tuple[Path, Path], without_proxy: None) -> Iterator[Server]:
    """A service with default limits."""
    classes, calibrations = folders
    options = ["--method", METHOD, "--views", str(VIEWS), "--backbone", "pocket", "twin=pocket", "--threads", "2"]
    with serving(*options, "--classes", f"@{classes}", "--calibration", str(calibrations)) as running:
        yield running


@dataclass(frozen=True)
class Local:
    """A service in this process, with the interface of :class:`Server`."""

    app: Any
    service: Service
    url: str = "http://127.0.0.1"

    def client(self, **options: Any) -> AbstractContextManager[TestClient]:
        return nullcontext(TestClient(self.app, base_url=self.url, raise_server_exceptions=False, **options))


@pytest.fixture(scope="session")
def local(folders: tuple[Path, Path], classifier: otpt.Classifier) -> Iterator[Local]:
    """A service with default limits, of which nothing is a socket."""
    service = Service(
        {"pocket": classifier.backbone, "twin": classifier.backbone},
        method=METHOD,
        views=VIEWS,
        classes=read_folder(folders[0], ".txt", read_class_list),
        calibrations=read_folder(folders[1], ".json", read_calibration),
        threads=2,
    )
    service.start()
    while not asyncio.run(service.ready()):
        time.sleep(0.02)
    yield Local(create_app(service, names=["127.0.0.1"]), service)
    service.close()
