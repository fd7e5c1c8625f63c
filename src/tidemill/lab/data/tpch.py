"""TPC-H's offers of suppliers as master data, its order lines as stream, by the generator `tpchgen-cli`."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.core.errors import SpecError, StoreError
from tidemill.lab.data.data_set import filler
from tidemill.model.workload import Workload

MASTER_ROW_BYTES = 223
STREAM_ROW_BYTES = 138
BATCH_ROWS = 10_000
_OFFERS_PER_PART = 4
_PARTS = 200_000
"""Of scale factor 1."""
_OFFER_COLUMNS = ["ps_partkey", "ps_suppkey", "ps_availqty", "ps_supplycost", "ps_comment"]
_OFFER_FILLER_BYTES = 58
"""Beside a comment of 124 bytes on average: the paper's 223 bytes a row."""
_LINE_COLUMNS = [
    "l_partkey",
    "l_orderkey",
    "l_suppkey",
    "l_linenumber",
    "l_quantity",
    "l_extendedprice",
    "l_discount",
    "l_tax",
    "l_shipdate",
    "l_commitdate",
    "l_receiptdate",
]
_LINE_FILLER_BYTES = 34
"""In place of flags and comment, of which the paper's 138 bytes hold a part."""


@dataclass(frozen=True, kw_only=True)
class TpchData:
    """`partsupp` and `lineitem`, joined on the part. Plain TPC-H has no skew: each part is ordered about equally often."""

    scale_factor: float
    distinct: bool = False
    """Whether one offer a part is kept, as for algorithms that know unique keys alone."""
    page_bytes: int = 16 * 1024

    @property
    def name(self) -> str:
        once = "-distinct" if self.distinct else ""
        return f"tpch-{self.scale_factor:g}-pages-{self.page_bytes}{once}"

    @property
    def key(self) -> str:
        return "part"

    @cached_property
    def workload(self) -> Workload:
        per_part = 1 if self.distinct else _OFFERS_PER_PART
        return Workload(
            master_rows=round(_PARTS * self.scale_factor) * per_part,
            master_row_bytes=MASTER_ROW_BYTES,
            stream_row_bytes=STREAM_ROW_BYTES,
            zipf_exponent=0.0,
            rows_per_key=per_part,
            page_bytes=self.page_bytes,
        )

    @property
    def master_order(self) -> None:
        return None

    @property
    def stream_schema(self) -> pa.Schema:
        small, money, day = pa.int32(), pa.decimal128(15, 2), pa.date32()
        kinds = [pa.int64()] * 3 + [small] + [money] * 4 + [day] * 3 + [pa.binary(_LINE_FILLER_BYTES)]
        names = [self.key, *_LINE_COLUMNS[1:], "rest"]
        return pa.schema(list(zip(names, kinds, strict=True)))

    def master(self, folder: Path) -> pa.RecordBatchReader:
        offers = pq.read_table(self._file("partsupp", folder), columns=_OFFER_COLUMNS)
        # Parquet's string views are no type that Arrow can take rows of.
        comments = offers.column("ps_comment").cast(pa.string())
        offers = offers.set_column(len(_OFFER_COLUMNS) - 1, "ps_comment", comments)
        if self.distinct:
            offers = offers.take(np.unique(offers.column(0).to_numpy(), return_index=True)[1])
        rest = filler(offers.num_rows, _OFFER_FILLER_BYTES, np.random.default_rng(7))
        named = offers.rename_columns([self.key, *_OFFER_COLUMNS[1:]]).append_column("facts", rest)
        return named.to_reader(max_chunksize=100_000)

    def stream(self, folder: Path) -> Iterator[pa.RecordBatch]:
        """Order lines as TPC-H has them, and from the first again."""
        lines = pq.ParquetFile(self._file("lineitem", folder))
        random = np.random.default_rng(7)
        for group in cycle(range(lines.num_row_groups)):
            for batch in lines.read_row_group(group, columns=_LINE_COLUMNS).to_batches(BATCH_ROWS):
                columns = [batch.column(name) for name in _LINE_COLUMNS]
                columns.append(filler(batch.num_rows, _LINE_FILLER_BYTES, random))
                yield pa.RecordBatch.from_arrays(columns, schema=self.stream_schema)

    def _file(self, table: str, folder: Path) -> Path:
        """The table as Parquet, made unless it is there."""
        made = folder / f"tpch-{self.scale_factor:g}"
        if not (made / f"{table}.parquet").exists():
            generate(table, self.scale_factor, made)
        return made / f"{table}.parquet"


def generate(table: str, scale_factor: float, folder: Path) -> None:
    """Let the generator write one table; it appears whole or not at all."""
    program = generator()
    aside = folder / "making"
    aside.mkdir(parents=True, exist_ok=True)
    wanted = ["--scale-factor", f"{scale_factor:g}", "--tables", table, "--output-dir", str(aside)]
    command = [program, "parquet", *wanted, "--overwrite"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise StoreError(
            f"tpchgen-cli ended with {done.returncode}: {done.stderr.strip()[-300:]}",
            code="tpch_generator",
            next_move="run it by hand with --scale-factor and --tables to see why",
        )
    (aside / f"{table}.parquet").rename(folder / f"{table}.parquet")


def generator() -> str:
    """Where the generator is installed."""
    beside = Path(sys.executable).with_name("tpchgen-cli")
    found = str(beside) if beside.exists() else shutil.which("tpchgen-cli")
    if found is None:
        raise SpecError(
            "TPC-H data needs the generator tpchgen-cli, which is not installed",
            code="no_tpch_generator",
            next_move="pip install tpchgen-cli, or leave out the experiments on TPC-H",
        )
    return found


__all__ = ["MASTER_ROW_BYTES", "STREAM_ROW_BYTES", "TpchData", "generate", "generator"]
