"""Load shedding: which rows of a stream that is too fast are joined now, and which later."""
