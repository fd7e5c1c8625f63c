"""What cannot work is refused before any process starts."""

from pathlib import Path

import pytest

import tidemill.demo.parts as parts_module
from tidemill.core.errors import StoreError
from tidemill.demo.parts import Parts
from tidemill.demo.run import prepare_folder
from tidemill.demo.screen import Screen


def test_a_full_staging_log_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = prepare_folder(tmp_path / "demo", fresh=True)
    monkeypatch.setattr(parts_module, "LOG_LEAST_ROOM_BYTES", parts_module.LOG_MAX_BYTES)
    parts = Parts(places, "32 MB", Screen(plain=True, json_output=True))
    with pytest.raises(StoreError, match="is full"):
        parts.start()
    assert [c.pid for c in (parts.loader, parts.receiver, parts.driver, parts.shop)] == [None] * 4
