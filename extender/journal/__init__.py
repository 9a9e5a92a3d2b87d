"""Record and replay: what the verbs were asked, what changed between, and the same again.

`serve --record DIR` writes it (`Recorder`), `gpu-extender replay DIR` answers it again (`report.py`). docs/replay.md
has the design.
"""
