"""What the cache of class lists counts is what it takes, whatever fields a request has."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from typing import Any

import psutil
import pytest
import torch
from oracles.pages.servers import image_file, text_of

from otpt.memory import retained_bytes
from otpt.serve.queries import Query
from otpt.serve.schemas import CompareRequest

from .conftest import Local

pytestmark = pytest.mark.slow

LISTS, LABELS = 6, 250
FIELDS: dict[str, dict[str, Any]] = {
    "labels": {},
    "reject": {"reject": True},
    "reject by another score": {"reject": "msp"},
    "templates": {"templates": ["a {}.", "the {}.", "a photo of a {}."]},
    "prompt": {"prompt": "a very long photo of something that is called a {}, seen from the side."},
    "a method that tunes": {"methods": ["o-tpt"], "views": 8},
    "several methods": {"methods": ["tpt", "c-tpt", "o-tpt", "templates-7"], "views": 8},
    "several labels": {"methods": ["multi-label"], "multi_label": True, "views": None},
    "groups": {"groups": {"all": ["{number} 1", "{number} 2"]}},
}


def memory() -> int:
    """Bytes of this process, without what was freed."""
    gc.collect()
    with suppress(OSError, AttributeError):  # other systems than Linux
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


def query(local: Local, fields: dict[str, Any], number: int) -> Query:
    values = {"image": text_of(image_file(1)), "methods": ["zero-shot"], "views": 1, **fields}
    if "groups" in fields:
        values["groups"] = {"all": [member.format(number=number) for member in fields["groups"]["all"]]}
    values["labels"] = [f"{number} {i}" for i in range(LABELS)]
    request = CompareRequest.model_validate({name: value for name, value in values.items() if value is not None})
    (found,) = local.service.catalogue.queries(request, 1, local.service.limits)
    return found


@pytest.mark.parametrize("name", FIELDS)
def test_counted_bytes_are_measured_bytes(local: Local, name: str) -> None:
    texts = local.service.texts
    for number in range(2):  # what is made once
        texts.make(query(local, FIELDS[name], 1000 + number).key)
    before = memory()
    made = [texts.make(query(local, FIELDS[name], number).key) for number in range(LISTS)]
    grown = memory() - before
    counted = sum(predictor.nbytes for predictor in made)
    print(f"{name}: counted {counted / LISTS / 1e3:.0f} kB, measured {grown / LISTS / 1e3:.0f} kB")
    slack = 3_000_000  # of the allocator, and other threads
    assert counted > 0.7 * grown - slack
    assert counted < 2.5 * grown + slack


def test_what_is_shared_is_not_counted() -> None:
    shared = {"network": torch.zeros(100_000)}
    numbers = torch.zeros(1000)
    assert 4000 < retained_bytes([numbers, numbers[:10], shared, len], [shared]) < 6000
