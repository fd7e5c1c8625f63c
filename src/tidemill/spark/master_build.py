"""Master data from a Spark DataFrame: Spark sorts, its tasks write the pages, the driver puts the version together.

```
survey   keys alone:  rows, NULL keys, and codes that cut the rows into equal shares
write    rows ─▶ spread by code, all rows of a code to one task ─▶ sort ─▶ one pages file a task (`master_parts.py`)
finish   files of the attempts that won ─▶ index, manifest ─▶ current
```
The DataFrame is computed twice, the first time for its key columns: cache one that is costly. No row passes through
the driver. The content is that of a build from the same rows in Arrow, but the order of rows *within* a key is
Spark's, and may differ from build to build.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows
from pyspark.sql.pandas.functions import arrow_udf

from tidemill.core.errors import SourceError, SpecError
from tidemill.core.units import format_count
from tidemill.master.build import MOST_SEEDS, BuildOptions, hash_collides, page_schema
from tidemill.master.history import History
from tidemill.master.keys import KeyForm
from tidemill.master.new_version import new_version
from tidemill.master.source import SourceRows, open_source
from tidemill.spark.job_watch import watched
from tidemill.spark.master_frame import arrow_schema, refuse_unfit
from tidemill.spark.master_parts import ANSWER, DONE_SUFFIX, Part, PartWriter, refuse_unfit_versions
from tidemill.spark.master_whole import attempts_folder, finish

_ROWS_OF_A_FILE = 100_000
"""Fewer are not worth a task of their own."""
_FILES_PER_CORE = 4
"""So that a slow task holds up little, and progress moves."""
_MOST_FILES = 64
"""Every handle on the store has each of them open."""
_CORES_UNTOLD = 8
"""Assumed over Spark Connect."""
_SAMPLED_SHARE = 1 / 32
"""Of the rows, to find where to cut: 3,000 rows a file tell it well, and all would cost 2 s of 10 M rows."""

T = TypeVar("T")


def build_version(source: DataFrame, *, key: Sequence[str], path: Path, options: BuildOptions) -> int:
    """The number of the version that readers now find as current."""
    refuse_unfit(source, options)
    given = arrow_schema(source)
    rows = open_source(pa.RecordBatchReader.from_batches(given, iter(())), key)
    page_schema(rows.schema, rows.form, options)  # a refusal comes before any row is read
    build = _Build(source.toDF(*(f"c{number}" for number in range(len(given)))), given, rows, options)
    folder = path.resolve()  # workers may stand in another folder
    survey = build.survey()
    with new_version(folder) as version:
        for seed in range(MOST_SEEDS):
            form = replace(rows.form, seed=seed)
            with attempts_folder(version) as attempts:
                parts = build.write(form, survey, attempts)
                if parts is not None:
                    schema = page_schema(rows.schema, form, options)
                    finish(parts, attempts, version, form, schema, options)
                    break
        else:
            raise hash_collides(rows.form)
    return version.number


@dataclass(frozen=True)
class _Survey:
    rows: int
    files: int
    bounds: list[int]
    """Codes with which a new file begins; empty when codes are hashes, which lie evenly."""


@dataclass(frozen=True)
class _Build:
    frame: DataFrame
    """With columns named by number: names of users may hold dots, or differ by case alone."""
    given: pa.Schema
    stored: SourceRows
    options: BuildOptions

    def survey(self) -> _Survey:
        """Where to cut; NULL keys are a `SpecError` with their number."""
        form = self.stored.form
        absent = F.lit(False)
        for column in self._keys():
            absent = absent | column.isNull()
        cuts = [number / _MOST_FILES for number in range(1, _MOST_FILES)]
        code = F.lit(0) if form.is_hashed else F.when(F.rand() < _SAMPLED_SHARE, self._keys()[0])
        asked = self.frame.select(absent.alias("absent"), code.cast("bigint").alias("code")).agg(
            F.count(F.lit(1)), F.count_if("absent"), F.percentile_approx("code", cuts)
        )
        rows, null_keys, codes = self._run(asked.collect, lambda _: None)[0]
        if null_keys:
            raise SpecError(
                f"{format_count(null_keys)} of {format_count(rows)} rows have NULL in key "
                + ", ".join(map(repr, form.columns)),
                code="null_keys",
                next_move="leave those rows out: a NULL key never matches",
                key=list(form.columns),
                null_keys=null_keys,
            )
        files = min(1 + rows // _ROWS_OF_A_FILE, self._most_files())
        cut = [] if form.is_hashed or not codes else range(1, files)
        return _Survey(rows, files, sorted({codes[n * _MOST_FILES // files - 1] for n in cut}))

    def write(self, form: KeyForm, survey: _Survey, attempts: Path) -> list[Part] | None:
        """What the tasks wrote, in order of code; None when two keys have the same code."""
        work_schema = form.told_by(self.stored.schema)
        writer = PartWriter(
            attempts, self.given, work_schema, form, self.options.page_bytes, self._history(form)
        )
        code = F.col("code")
        file = _even(code, survey.files) if form.is_hashed else _bucket(code, survey.bounds)
        ordered = (
            self.frame.withColumn("code", self._code(writer))
            .repartitionById(survey.files, file)
            .sortWithinPartitions("code")
            .drop("code")
        )
        tick = _Progress(self.options, survey, attempts)
        answers = self._run(ordered.mapInArrow(writer.write, ANSWER).toArrow, tick)
        refuse_unfit_versions(answers, form, survey.rows)
        parts = [Part.of(answer) for answer in answers.to_pylist()]
        whole = [part for part in parts if part is not None]
        if len(whole) < len(parts):
            return None
        return sorted(whole, key=lambda part: int(part.index.first_code[0]))

    def _history(self, form: KeyForm) -> History | None:
        pair = self.options.history
        return None if pair is None else History.choose(self.stored.schema, form, pair)

    def _keys(self) -> list[Column]:
        return [F.col(f"c{self.given.names.index(name)}") for name in self.stored.form.columns]

    def _code(self, writer: PartWriter) -> Column:
        if not writer.form.is_hashed:
            return self._keys()[0].cast("bigint")
        hashed: Column = arrow_udf(writer.codes, "bigint")(*self._keys())  # type: ignore[call-overload]  # the stubs ask for what then warns
        return hashed

    def _most_files(self) -> int:
        context = getattr(self.frame.sparkSession, "sparkContext", None)
        cores = _CORES_UNTOLD if context is None else context.defaultParallelism
        return min(_MOST_FILES, _FILES_PER_CORE * cores)

    def _run(self, action: Callable[[], T], tick: Callable[[float], None]) -> T:
        try:
            return watched(self.frame.sparkSession, action, tick)
        except (PySparkException, Py4JError) as error:
            raise SourceError(
                f"Spark did not finish: {_reason(str(error))}",
                code="spark_failed",
                next_move="mend what it names and build again; what was current still is",
            ) from error


class _Progress:
    """Tells rows done: half of a row's way is to its task, half into the file."""

    def __init__(self, options: BuildOptions, survey: _Survey, attempts: Path) -> None:
        self._tell = options.progress
        self._survey = survey
        self._attempts = attempts
        self._done = 0

    def __call__(self, share_of_tasks: float) -> None:
        if self._tell is None:
            return
        # Attempts of the same task begin with the same number. While one file is done, all rows have been spread.
        written = {file.name.partition("-")[0] for file in self._attempts.glob(f"*{DONE_SUFFIX}")}
        share = 1 + len(written) / self._survey.files if written else share_of_tasks
        self._done = max(self._done, int(share * self._survey.rows / 2))
        self._tell(self._done, self._survey.rows)


def _even(code: Column, files: int) -> Column:
    """The file of a hash; rising with it, since a rounded product does."""
    return F.least(F.floor((code.cast("double") / 2.0**64 + 0.5) * files), F.lit(files - 1)).cast("int")


def _bucket(code: Column, bounds: Sequence[int], first: int = 0) -> Column:
    """How many of the bounds are not above the code, found by halving."""
    if not bounds:
        return F.lit(first)
    middle = len(bounds) // 2
    below = _bucket(code, bounds[:middle], first)
    return F.when(code < bounds[middle], below).otherwise(
        _bucket(code, bounds[middle + 1 :], first + middle + 1)
    )


def _reason(text: str) -> str:
    """The line of Spark's message that names the cause: the last error of a Python traceback, else the first line."""
    raised = re.findall(r"^[\w.]+(?:Error|Exception): .+$", text, re.MULTILINE)
    return str(raised[-1]) if raised else text.strip().partition("\n")[0]


__all__ = ["build_version"]
