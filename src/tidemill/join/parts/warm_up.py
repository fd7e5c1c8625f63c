"""Compile the join kernels once, so that later processes load them: `python -m tidemill.join.parts.warm_up`."""

import time


def main() -> None:
    started = time.perf_counter()
    # Fixed signatures compile at import, and the compiled code stays on disk beside the module.
    import tidemill.join.catalog
    import tidemill.join.parts.shared_cache  # noqa: F401

    print(f"join kernels ready after {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
