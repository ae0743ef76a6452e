"""What users' seeds, ledgers and model files depend on stays as it is, or changes on purpose.

A name or default of a setting, an event or a name in a file that changes makes old seeds draw other noise, or old files
unreadable. Where that is meant: ``python -m tests.pins --write-portable``, and a line in the CHANGELOG.
"""

from __future__ import annotations

import copy
import json

import pytest

from tests.pins import portable


@pytest.fixture(scope="module")
def found():
    return json.loads(portable.written())


@pytest.fixture(scope="module")
def kept():
    return json.loads(portable.FILE.read_text(encoding="utf-8"))


def close(one, other):
    """Equal but for the last digits of rounded numbers, which may differ where a rounding falls on its edge."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float) and isinstance(other, (int, float)):
        return one == pytest.approx(other, rel=3e-6)
    return one == other


@pytest.mark.parametrize("section", ["losses", "settings", "fingerprints", "events", "layouts"])
def test_pins_hold(found, kept, section):
    assert set(found) == set(kept)
    changed = [key for key in found[section] if not close(found[section][key], kept[section].get(key))]
    assert changed == [] and kept[section].keys() == found[section].keys()


def test_a_change_would_be_seen(kept):
    """A noise that is other by one part in ten thousand, a setting with another default, another number of releases."""
    event = kept["events"]["dp_ight, tight"]
    inner = event["events"][0]
    changed = copy.deepcopy(event)
    changed["events"][0]["count"] = inner["count"] + 1
    assert not close(changed, event)
    changed = copy.deepcopy(event)
    changed["events"][0]["event"]["noise_multiplier"] *= 1.0001
    assert not close(changed, event) and close(event, copy.deepcopy(event))
    assert not close(kept["settings"]["dp_ight"] | {"steps": "1"}, kept["settings"]["dp_ight"])
