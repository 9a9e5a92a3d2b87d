"""`gpu-extender` and `python -m extender`."""


def main() -> int:
    raise SystemExit("not yet")
