"""The ETL workflow on Spark: filters, branches and the delivery of a batch."""
