"""Semi-stream joins: a stream in Arrow batches meets master data bigger than memory."""
