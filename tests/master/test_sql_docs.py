"""The example of the page on master data in a database runs as printed."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "master-in-a-database.md"


def test_the_example_gives_what_it_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, str(PAGE), "exec"), {})
    printed = capsys.readouterr().out
    assert "{'sale': 12, 'product': 1, 'name': 'anvil', 'price': Decimal('99.50')}" in printed
    assert "{'sale': 11, 'product': 7, 'name': None, 'price': None}" in printed
    assert printed.endswith("[0, 1] ['anvil', 'bolt']\n")
