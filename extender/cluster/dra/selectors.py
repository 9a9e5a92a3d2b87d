"""Which devices a DeviceClass selects, as far as its CEL expressions can be read.

No CEL is evaluated. Read is a conjunction of comparisons `device.driver == 'D'` and
`device.attributes['D'].type == 'T'`, as drivers write them; any other term of the conjunction can only leave devices
out. Whatever else an expression is, it selects something that we do not know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from extender.objects.records import DeviceClassRecord

NVIDIA: Final = "gpu.nvidia.com"
WHOLE: Final[Mapping[str, str]] = {NVIDIA: "gpu"}
"""By driver: the value of its attribute type of a device that is a whole GPU."""
LONGEST: Final = 10 * 1024  # characters of an expression: what the API server accepts
_TOKEN: Final = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|&&|.""", re.DOTALL)
_DRIVER: Final = re.compile(r"device\.driver\s*==\s*(['\"])([^'\"\\]*)\1")
_TYPE: Final = re.compile(r"device\.attributes\[(['\"])([^'\"\\]*)\1\]\.type\s*==\s*(['\"])([^'\"\\]*)\3")


def driver_of(record: DeviceClassRecord) -> str:
    """The driver of which the class selects whole GPUs and nothing else; "" where that is not certain."""
    terms = [term for text in record.selectors for term in terms_of(text)]
    drivers = {found[2] for term in terms if (found := _DRIVER.fullmatch(term))}
    if len(drivers) != 1:
        return ""
    (driver,) = drivers
    kinds = {(found[2], found[4]) for term in terms if (found := _TYPE.fullmatch(term))}
    return driver if (driver, WHOLE.get(driver)) in kinds else ""


def is_every(record: DeviceClassRecord) -> bool:
    """Whether the class selects every whole GPU of its driver, as the class of the driver does."""
    expressions = [terms_of(text) for text in record.selectors]
    return bool(driver_of(record)) and all(terms and all(map(_is_whole, terms)) for terms in expressions)


def _is_whole(term: str) -> bool:
    """Whether the term states the driver, or the type of its whole GPUs: such a term leaves none of these out."""
    found = _TYPE.fullmatch(term)
    return bool(_DRIVER.fullmatch(term)) if found is None else found[4] == WHOLE.get(found[2])


def terms_of(text: str) -> list[str]:
    """The terms of a conjunction; none of a disjunction or a choice, where no term need hold. What stands in brackets
    is one term."""
    if len(text) > LONGEST:
        return []
    terms, depth = [""], 0
    for token in _TOKEN.findall(text):
        depth += (token in ("(", "[", "{")) - (token in (")", "]", "}"))
        if not depth and token in ("|", "?"):
            return []
        if not depth and token == "&&":
            terms.append("")
        else:
            terms[-1] += token
    return [term.strip() for term in terms]
