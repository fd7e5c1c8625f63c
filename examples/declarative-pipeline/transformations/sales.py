"""Sales of a folder, enriched with products: a streaming table in a declarative pipeline.

A flow may not ask for a schema while the pipeline is put together, so `tm.enrich` is told it. The rows come from
outside of the pipeline: a DataFrame with a given schema cannot be made of another table of the same pipeline.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import tidemill as tm

DATA = os.environ.get("TIDEMILL_EXAMPLE_DATA", "data")
SALES = StructType([StructField("sale_id", LongType()), StructField("product_id", LongType())])

spark = SparkSession.active()


@dp.table(name="enriched_sales")
def enriched_sales() -> DataFrame:
    sales = spark.readStream.schema(SALES).parquet(f"{DATA}/sales")
    products = tm.MasterData.open(f"{DATA}/products")
    return tm.enrich(
        sales, products, on="product_id", columns=["name", "price"], schema=SALES, memory="64 MB",
        hot_rows=f"{DATA}/hot",
    )  # fmt: skip
