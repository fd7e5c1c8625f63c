"""Parts that several joins share: what waits, what stays in memory, what is counted."""
