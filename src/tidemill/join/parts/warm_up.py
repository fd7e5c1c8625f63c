"""Compile the join kernels once, so that later processes load them: `python -m tidemill.join.parts.warm_up`."""

import time


def main() -> None:
    started = time.perf_counter()
    # Fixed signatures compile at import, and the compiled code stays on disk beside the module.
    import tidemill.join.parts.kernels
    import tidemill.join.parts.leaving_kernels
    import tidemill.join.parts.row_cache_kernels
    import tidemill.join.parts.waiting_kernels
    import tidemill.join.parts.window_kernels
    import tidemill.master.hashing
    import tidemill.master.page_kernels
    import tidemill.master.read_kernels
    import tidemill.master.row_kernels  # noqa: F401

    print(f"join kernels ready after {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
