"""The bill of materials and the page of licences: every pin, every shipped data file, nothing of the machine."""

from __future__ import annotations

import json
import re
from pathlib import Path

from torture.supply.licences import DATA
from torture.supply.packages import UNKNOWN, Package, pinned
from torture.supply.sbom import as_text, bill_of_materials

ROOT = Path(__file__).parents[2]
PINS = ROOT / "constraints" / "python-3.11.txt"
BILL = ROOT / "constraints" / "sbom.cdx.json"
PAGE = ROOT / "docs" / "licences.md"


def pins() -> dict[str, str]:
    return dict(line.split("==") for line in PINS.read_text(encoding="utf-8").split())


def test_the_stored_files_name_every_pin() -> None:
    bill = json.loads(BILL.read_text(encoding="utf-8"))
    assert {each["name"]: each["version"] for each in bill["components"]} == pins()
    rows = re.findall(r"^\| ([\w.-]+) \| ([\w.+-]+) \| .+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {**dict(rows[1:])} == pins(), "run python -m torture.supply"


def test_the_bill_has_the_form_of_cyclonedx() -> None:
    bill = json.loads(BILL.read_text(encoding="utf-8"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    references = [each["bom-ref"] for each in bill["components"]]
    assert len(set(references)) == len(references)
    assert all(each["purl"].startswith("pkg:pypi/") for each in bill["components"])
    assert {name for each in bill["dependencies"] for name in each["dependsOn"]} <= set(references)


def test_nothing_of_a_machine_is_in_them() -> None:
    text = BILL.read_text(encoding="utf-8") + PAGE.read_text(encoding="utf-8")
    assert not re.search(r"/(home|root|work|tmp|usr)/|timestamp|serialNumber|localhost|https?://", text)


def test_the_same_pins_give_the_same_bytes(tmp_path: Path) -> None:
    file = tmp_path / "pins.txt"
    file.write_text("numpy==1.0\nno-such-package-anywhere==2.0\n", encoding="utf-8")
    packages = pinned(file)
    assert packages[0] == Package("no-such-package-anywhere", "2.0", UNKNOWN, ())
    assert packages[1].licence != UNKNOWN
    assert as_text(bill_of_materials(packages)) == as_text(bill_of_materials(pinned(file)))


def test_every_data_file_of_the_package_is_on_the_page() -> None:
    named = [each[0].strip("`") for each in DATA]
    for path in (ROOT / "src").rglob("*"):
        if path.suffix in (".safetensors", ".json", ".txt") and path.name != "open_clip_config.json":
            place = path.relative_to(ROOT).as_posix()
            assert any(place == each or (each.endswith("/") and place.startswith(each)) or Path(place).match(each)
                       for each in named), place  # fmt: skip
    assert [each for each in named if not any(ROOT.glob(each.rstrip("/")))] == [], "rows of files that are gone"
