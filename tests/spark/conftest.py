"""One Spark session for all tests of this folder."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tidemill.spark.session import start_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_session(
        "tidemill tests", cores=2, scratch=tmp_path_factory.mktemp("scratch"), low_latency=True
    )
    yield session
    session.stop()
