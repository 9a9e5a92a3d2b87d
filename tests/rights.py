"""Every rule of every role in manifests/, with the comment that justifies it: docs/rights.md.

tests/e2e/test_rights.py shows on the real API server that each right of the server is used, and that none is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from ruamel.yaml import YAML

ROOT: Final = Path(__file__).parents[1]
MANIFESTS: Final = ROOT / "manifests"
_HEAD: Final = """# Rights

Every rule of every role in `manifests/`, and its reason. A rule that an earlier role has with the same reason is only
named. A test with the API server's audit log shows that no request is denied and that each right is used
([internals](internals/tested.md)).
"""
_ROLES: Final = {"kind: Role", "kind: ClusterRole"}
_SHOWN: Final = 6  # paths of a rule


class Rule(NamedTuple):
    """`file`: in manifests/; `role`: its kind and name; `why`: the comment above the rule, one line."""

    file: str
    role: str
    rule: dict[str, Any]
    why: str

    @property
    def objects(self) -> str:
        """What it is about: resources with their API group, or paths."""
        groups = ["core" if group == "" else group for group in self.rule.get("apiGroups", ())]
        named = [*self.rule.get("resources", ()), *self.rule.get("nonResourceURLs", ())]
        shown = ", ".join(f"`{name}`" for name in named[:_SHOWN] if name)
        more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
        names = ", ".join(f"`{name}`" for name in self.rule.get("resourceNames", ()))
        return shown + more + (f" ({', '.join(groups)})" if groups else "") + (f" named {names}" if names else "")


def files() -> list[Path]:
    """All of manifests/ but the templates of the chart, which have no role of their own."""
    return sorted(file for file in MANIFESTS.rglob("*.yaml") if file.parent.name != "templates")


def rules() -> Iterator[Rule]:
    """In the order of the files."""
    for file in files():
        lines = file.read_text().splitlines()
        if not _ROLES & {*lines}:
            continue
        for made in YAML(typ="rt").load_all("\n".join(lines)):
            if not isinstance(made, dict) or made.get("kind") not in ("Role", "ClusterRole"):
                continue
            role = f"{made['kind']} `{made['metadata']['name']}`"
            for n, rule in enumerate(made["rules"]):
                above = _comment(lines[: made["rules"].lc.item(n)[0]])
                yield Rule(str(file.relative_to(MANIFESTS)), role, dict(rule), above)


def _comment(lines: list[str]) -> str:
    """The comment that ends with the last line; "" where that is none."""
    found: list[str] = []
    while lines and lines[-1].lstrip().startswith("#"):
        found.insert(0, lines.pop().lstrip("# "))
    return " ".join(found)


def page() -> str:
    """docs/rights.md."""
    text, printed = _HEAD, dict[tuple[str, str, str], str]()
    for (file, role), group in groupby(rules(), lambda one: (one.file, one.role)):
        text += f"\n## {role} in `{file}`\n"
        rows, repeated = list[tuple[str, str, str]](), dict[tuple[str, str], list[str]]()
        for one in group:
            verbs = ", ".join(one.rule["verbs"])
            key = verbs, one.objects, one.why
            if key in printed:
                repeated.setdefault((verbs, printed[key]), []).append(one.objects)
                continue
            printed[key] = role
            if one.why.startswith("The same ") and rows and rows[-1][0] == verbs:
                rows[-1] = (verbs, f"{rows[-1][1]}; {one.objects}", rows[-1][2])
            else:
                rows.append(key)
        table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
        text += f"\n| may | what | why |\n|---|---|---|\n{table}" if rows else ""
        text += "".join(_repeated(verbs, of, objects, printed) for (verbs, of), objects in repeated.items())
    return text


def _repeated(verbs: str, role: str, objects: list[str], printed: dict[tuple[str, str, str], str]) -> str:
    """What a role may as an earlier one: by name, unless it is all for which that role has these verbs alone."""
    among = sum(key[0] == verbs and of == role for key, of in printed.items())
    if len(objects) == among > 1:
        return f"\nMay also {verbs.replace(', ', ' and ')} each object for which {role} has these verbs alone.\n"
    return f"\nMay also {verbs}, as in {role}: {'; '.join(objects)}.\n"
