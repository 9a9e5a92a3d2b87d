"""What a question a second costs the verbs of a large server, and how long its answer takes.

    python -m benchmarks.asking [--nodes 15000] [--pods 150000] [--seconds 20] [--rounds 3]

One client asks filter for 100 candidates, again and again. Beside it one question a second is answered: `live` by
slices on the event loop, `fork` by a fork of the server, `copy` by a process that gets the state of the server and then
follows it (its first answer only). The ways take turns, in both orders. Wall time of the calls in milliseconds; `fork`:
how long the server stands still; `answer`: from the question to its last byte; memory in MiB: of the server, and what
the other process has of its own.
"""
