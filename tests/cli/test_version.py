import json
import platform
from importlib import metadata

from tidemill.cli.version import installed_version


def test_version_names_package_and_what_it_stands_on(tidemill):
    lines = dict(line.split() for line in tidemill("version").stdout.splitlines())
    assert lines["tidemill"] == metadata.version("tidemill")
    assert lines["Python"] == platform.python_version()
    assert lines["DuckDB"] == metadata.version("duckdb")


def test_version_in_json_says_the_same(tidemill):
    answer = json.loads(tidemill("version", "--json").stdout)
    assert answer.keys() == {"tidemill", "python", "pyspark", "pyarrow", "duckdb"}
    assert answer["pyspark"] == metadata.version("pyspark")


def test_missing_package_has_no_version():
    assert installed_version("tidemill-no-such-package") is None
