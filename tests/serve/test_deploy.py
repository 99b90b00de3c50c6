"""The files of deploy/: they parse, refer to each other, and name metrics and options that exist."""

from __future__ import annotations

import json
import re
import shlex

import pytest
import yaml
from oracles.pages.docs_pages import DOCS, ROOT, code, rows, section
from prometheus_client import Counter, Gauge

from otpt.cli.app import parse
from otpt.serve.limits import Limits
from otpt.serve.metrics import Metrics

pytestmark = pytest.mark.slow

DEPLOY = ROOT / "deploy"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "otpt.json"
LABELS = {"le", "replica"}


def metrics() -> dict[str, set[str]]:
    """Name of each series that the service or the door may show → its labels."""
    found = Metrics()
    found.watch(int, int, int)
    Counter("otpt_retries", "as in forwarding", registry=found.registry)
    Gauge("otpt_replicas", "as in forwarding", registry=found.registry)
    names: dict[str, set[str]] = {}
    for collector, series in found.registry._collector_to_names.items():
        for name in series:
            names[name] = {*getattr(collector, "_labelnames", ()), *LABELS}
    return names


def test_every_metric_of_the_dashboard_exists() -> None:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len(panels) > 10
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    known, used = metrics(), set[str]()
    for panel in panels:
        assert panel["description"]
        assert panel["datasource"]["uid"] == "prometheus"
        for target in panel["targets"]:
            query = target["expr"]
            assert query.count("(") == query.count(")")
            for name, matchers in re.findall(r"(otpt_\w+)(?:\{([^}]*)\})?", query):
                assert name in known, f"{panel['title']}: {name}"
                assert set(re.findall(r"(\w+)(?:=|!=|=~)\"", matchers)) <= known[name]
                used.add(re.sub(r"_(total|sum|count|bucket)$", "", name))
    shown = {re.sub(r"_(total|sum|count|bucket|created)$", "", name) for name in known}
    assert shown - used == {"otpt_text_cache_entries"}, "what the dashboard leaves out"


def test_panels_do_not_overlap() -> None:
    places: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & places, panel["title"]
        assert at["x"] + at["w"] <= 24
        places |= cells


def test_compose() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yml").read_text(encoding="utf-8"))
    services = compose["services"]
    assert set(services) == {"otpt", "prometheus", "grafana"}
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source
            else:
                assert source in compose["volumes"]
    assert (DEPLOY / services["otpt"]["build"]["context"] / services["otpt"]["build"]["dockerfile"]).is_file()
    command = [re.sub(r"\$\{\w+:-(\w+)\}", r"\1", word) for word in services["otpt"]["command"]]
    assert parse(["serve", "--host", "0.0.0.0", *command])["hosts"] == ("127.0.0.1", "localhost", "otpt")
    assert int(services["otpt"]["stop_grace_period"].rstrip("s")) > Limits().seconds


def test_prometheus_and_grafana() -> None:
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["otpt:8000"]}]
    folder = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text(encoding="utf-8"))["datasources"]
    assert (source["uid"], source["url"]) == ("prometheus", "http://prometheus:9090")
    (provider,) = yaml.safe_load((folder / "dashboards" / "otpt.yml").read_text(encoding="utf-8"))["providers"]
    compose = yaml.safe_load((DEPLOY / "compose.yml").read_text(encoding="utf-8"))
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in compose["services"]["grafana"]["volumes"]


def test_container() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    (entry,) = [json.loads(line.partition(" ")[2]) for line in lines if line.startswith("ENTRYPOINT ")]
    (more,) = [json.loads(line.partition(" ")[2]) for line in lines if line.startswith("CMD ")]
    assert entry[0] == "otpt"
    assert parse([*entry[1:], *more])["backbone"] == ("pocket",)
    copied = [word for line in lines if re.match(r"COPY (?!--from)", line) for word in shlex.split(line)[1:-1]]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert lines.index("USER otpt") < next(i for i, line in enumerate(lines) if line.startswith("ENTRYPOINT"))
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(re.search(rf"^{each} = \[", project, re.MULTILINE) for each in extras.split(","))


def test_arguments_in_the_documentation() -> None:
    ray_app = pytest.importorskip("otpt.serve.replicas.ray_app", reason="needs Ray", exc_type=ImportError)
    table = rows(section(DOCS / "serving-at-scale.md", "On Ray"))
    assert {name for row in table for name in code(row[0])} == {*ray_app.TEXTS, *ray_app.SWITCHES, *ray_app.NUMBERS}
