"""Gauges that need a look at the whole cluster: `Survey` counts now and then, `gauges` shows what was counted."""
