"""The durable queue between sources and Spark: a log on disk, its readers, and the receiver that fills it."""

from tidemill.staging.log import StagingLog
from tidemill.staging.reader import LogHead, LogReader
from tidemill.staging.retention import mark_consumed

__all__ = ["LogHead", "LogReader", "StagingLog", "mark_consumed"]
