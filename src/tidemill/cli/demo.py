"""`tidemill demo`."""

from tidemill.demo.run import DemoOptions, run_demo

demo = run_demo

__all__ = ["DemoOptions", "demo"]
