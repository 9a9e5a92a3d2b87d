"""`python -m extender.policy` prints docs/policy.md."""

from __future__ import annotations

from inspect import cleandoc
from typing import Final

from extender.policy.costs import COSTS
from extender.policy.rules import RULES
from extender.policy.scorers import SCORERS
from extender.settings import Settings

HEAD: Final = """# Policy: rules, scorers, cost terms

What decides, each in one short class of `extender/policy/`. This page is printed by `python -m extender.policy`.
"""
RULES_HEAD: Final = """
## Rules

A rule rejects nodes. The first rule in this order that rejects a node gives its reason ([reasons.md](reasons.md)).

| rule | meaning |
|---|---|
"""
SCORERS_HEAD: Final = """
## Scorers

A scorer values each feasible node from 0 to 1. The weighted sum ranks the nodes. The setting `scorers` chooses them;
the weight is the default, "none" means not used by default.

| scorer | weight | meaning |
|---|--:|---|
"""
COSTS_HEAD: Final = """
## Costs

Terms of what an eviction costs, less is better. They are compared one by one in the order of the setting `costs`, by
default in this order.

| term | unit | meaning |
|---|---|---|
"""


def page() -> str:
    """docs/policy.md."""
    settings = Settings()
    weights = {scorer.name: f"{scorer.weight:.15g}" for scorer in settings.scorers}
    used = [*weights, *(name for name in SCORERS if name not in weights)]
    terms = [*settings.costs, *(name for name in COSTS if name not in settings.costs)]
    return "".join(
        (
            HEAD,
            RULES_HEAD,
            *(f"| `{rule.name}` | {_meaning(rule)} |\n" for rule in RULES),
            SCORERS_HEAD,
            *(f"| `{name}` | {weights.get(name, 'none')} | {_meaning(SCORERS[name])} |\n" for name in used),
            COSTS_HEAD,
            *(f"| `{name}` | {COSTS[name].unit} | {_meaning(COSTS[name])} |\n" for name in terms),
        )
    )


def _meaning(part: type[object]) -> str:
    """The first paragraph of its docstring."""
    return " ".join(cleandoc(part.__doc__ or "").partition("\n\n")[0].split())


if __name__ == "__main__":
    print(page(), end="")
