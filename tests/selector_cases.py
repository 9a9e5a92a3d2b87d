"""Random selectors of devices, with devices: by a grammar over the types and functions that Kubernetes gives to CEL,
and what the classes of real drivers state."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

JSON = dict[str, Any]
DRIVERS = ("gpu.nvidia.com", "gpu.amd.com", "gpu.intel.com", "gpu.example.com", "dra.net", "compute-domain.nvidia.com")
TEXTS = ("gpu", "mig", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "Hopper", "1g.10gb", "0000:17:00.0", "",
         "a,b,c", "pci0000:16", "GPU-0a1b", "  x ", "Ampere", "true", "7", "1.2.3", "80Gi", "é")  # fmt: skip
VERSIONS = ("1.2.3", "570.86.15", "12.8.0", "9.0.0", "0.5.0-rc.1", "0.5.0-rc.2", "1.2.3+build", "1.2.3-alpha.10",
            "1.2.3-alpha.2", "1.2.3-1")  # fmt: skip
LOOSE = ("v1.2", "01.2.3", "1", "1.2.3.4", "v", "1.2-rc", "a.b.c", *VERSIONS)
QUANTITIES = ("80Gi", "40Gi", "81559Mi", "1.5Gi", "100", "0", "500m", "1e3", "1k", "0.5", "1.50", "-3", "16384Ki", "2E",
              "9223372036854775807", "9223372036854775808", "12Pi", "1u", "0.0000000001")  # fmt: skip
BAD_QUANTITIES = ("80GB", "Gi", "", "1..2", "200K", *QUANTITIES)
PATTERNS = (
    "H100|H200",
    "^NVIDIA",
    "80GB$",
    "[0-9]+",
    "(?i)hopper",
    ".*",
    "^(a|b)*$",
    r"\\d+g",
    "",
    "x*",
    "A.0",
    r"\\bSXM",
)
NAMES = ("type", "productName", "uuid", "index", "driverVersion", "healthy", "profile", "cores", "nothing")
CAPACITIES = ("memory", "multiprocessors", "slots", "nothing")
REAL = (
    "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'",
    "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'",
    "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'vfio'",
    "device.driver == 'compute-domain.nvidia.com' && device.attributes['compute-domain.nvidia.com'].type == 'channel'"
    " && device.attributes['compute-domain.nvidia.com'].id == 0",
    "device.driver == 'compute-domain.nvidia.com' && device.attributes['compute-domain.nvidia.com'].type == 'daemon'",
    "device.driver == 'gpu.amd.com'",
    "device.driver == 'gpu.intel.com'",
    "device.driver == 'gpu.example.com'",
    "device.driver == 'dra.net'",
    "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'",
    "device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*a100.*$')",
    "device.attributes['gpu.nvidia.com'].brand == 'Tesla'"
    " || device.attributes['gpu.nvidia.com'].architecture == 'Hopper'",
    "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0",
    "device.capacity['gpu.example.com'].memory.isGreaterThan(quantity('10Gi'))",
    "device.attributes['gpu.nvidia.com'].driverVersion.compareTo(semver('560.0.0')) >= 0",
    "device.attributes['gpu.nvidia.com'].cudaComputeCapability.isGreaterThan(semver('8.0.0'))",
    "device.attributes['dra.net'].rdma == true && device.attributes['dra.net'].ifName.startsWith('eth')",
    "device.attributes['dra.net'].kind == 'network' && !device.attributes['dra.net'].virtual",
    "device.attributes['gpu.intel.com'].family == 'Max' && device.capacity['gpu.intel.com'].memory.sign() == 1",
    "'gpu.nvidia.com' in device.attributes && 'productName' in device.attributes['gpu.nvidia.com']",
    "has(device.attributes['resource.kubernetes.io'].pcieRoot)",
    "device.attributes['resource.kubernetes.io'].numaNode in [0, 1]",
    "cel.bind(gpu, device.attributes['gpu.nvidia.com'], gpu.type == 'gpu' && gpu.index < 4)",
    "device.attributes['gpu.nvidia.com'].?parentUUID.orValue('') == 'GPU-0a1b'",
    "device.attributes[?'gpu.amd.com'].?partitionProfile.orValue('spx_nps1') == 'spx_nps1'",
    "device.allowMultipleAllocations == false",
    "device.attributes['gpu.nvidia.com'].index in [0, 2, 4]",
    "[0, 1].exists(i, device.attributes['gpu.nvidia.com'].index == i)",
)


class Case(NamedTuple):
    """A selector, and a device of a driver as in a ResourceSlice."""

    expression: str
    driver: str
    device: JSON

    def line(self) -> str:
        """As the command `selectors` reads it."""
        return json.dumps(self._asdict())


def cases(seed: int, number: int) -> Iterator[Case]:
    """One in five with an expression of a real driver."""
    random = Random(seed)
    for at in range(number):
        expression = random.choice(REAL) if at % 5 == 0 else Grammar(random).expression()
        yield Case(expression, *device(random))


def device(random: Random) -> tuple[str, JSON]:
    """A driver and one of its devices."""
    driver = random.choice(DRIVERS)
    stated: JSON = {
        "type": {"string": random.choice(("gpu", "mig", "vfio", "channel"))},
        "productName": {"string": random.choice(TEXTS)},
        "uuid": {"string": random.choice(TEXTS)},
        "index": {"int": random.choice((0, 1, 2, 7, -1, 2**40))},
        "id": {"int": random.randrange(2)},
        "driverVersion": {"version": random.choice(VERSIONS)},
        "cudaComputeCapability": {"version": random.choice(VERSIONS)},
        "healthy": {"bool": random.random() < 0.5},
        "rdma": {"bool": random.random() < 0.5},
        "virtual": {"bool": random.random() < 0.5},
        "profile": {"string": random.choice(("1g.10gb", "3g.40gb"))},
        "cores": {"string": "7"} if random.random() < 0.3 else {"int": random.randrange(8)},
        "brand": {"string": "Tesla"},
        "architecture": {"string": random.choice(("Hopper", "Ampere"))},
        "ifName": {"string": random.choice(("eth1", "ib0"))},
        "kind": {"string": "network"},
        "family": {"string": "Max"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:16"},
        "resource.kubernetes.io/numaNode": {"int": random.randrange(3)},
    }
    attributes = {name: value for name, value in stated.items() if random.random() < 0.85}
    capacity = {name: {"value": random.choice(QUANTITIES)} for name in CAPACITIES[:-1] if random.random() < 0.85}
    found: JSON = {"name": "d", "attributes": attributes, "capacity": capacity}
    if random.random() < 0.3:
        found["allowMultipleAllocations"] = random.random() < 0.5
    return driver, found


def quoted(text: str) -> str:
    """A literal, in one of the ways of CEL."""
    return "'" + text + "'"


class Grammar:
    """Expressions by type. A value of type dyn stands in for any other now and then, and a wrong type rarely."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._scope: list[tuple[str, str]] = []
        self._names = 0

    def expression(self) -> str:
        return self.of("bool", 4)

    def of(self, kind: str, depth: int) -> str:
        """An expression of this type."""
        random = self.random
        if random.random() < 0.003:
            kind = random.choice(("bool", "int", "string", "double"))
        if depth <= 0:
            return self._leaf(kind)
        named = [name for name, its in self._scope if its in (kind, "dyn")]
        if named and random.random() < 0.4:
            return random.choice(named)
        if kind in ("string", "int", "bool") and random.random() < 0.12:
            return self._attribute()
        made: Callable[[str, int], str] = random.choice((self._leaf_of, self._function, self._function, self._choice))
        return made(kind, depth)

    def _leaf_of(self, kind: str, _: int) -> str:
        return self._leaf(kind)

    def _leaf(self, kind: str) -> str:
        random = self.random
        named = [name for name, its in self._scope if its == kind]
        if named and random.random() < 0.6:
            return random.choice(named)
        if kind == "bool":
            return random.choice(("true", "false", "device.allowMultipleAllocations", self._attribute("healthy")))
        if kind == "int":
            return random.choice(("0", "1", "-1", "3", "7", "0x10", "9223372036854775807", self._attribute("index")))
        if kind == "double":
            return random.choice(("0.5", "-1.0", "1e3", "3.0", "100.25"))
        if kind == "string":
            return random.choice(
                (quoted(random.choice(TEXTS)), quoted(random.choice(TEXTS)), "device.driver", self._attribute("type"),
                 self._attribute("productName"), 'r"a\\b"', '"a\\tb\\u00e9\\x41\\101"', "'''a'b'''")
            )  # fmt: skip
        if kind == "quantity":
            return random.choice((f"quantity('{random.choice(BAD_QUANTITIES)}')", self._capacity(), self._capacity()))
        if kind == "semver":
            loose = f"semver('{random.choice(LOOSE)}', true)"
            return random.choice((f"semver('{random.choice(VERSIONS)}')", self._attribute("driverVersion"), loose))
        if kind == "optional":
            name = random.choice(NAMES)
            domain = self._domain()
            return random.choice(
                (f"device.attributes['{domain}'].?{name}", f"device.attributes[?'{domain}'].?{name}",
                 f"optional.of({self._leaf('string')})", "optional.none()",
                 f"optional.ofNonZeroValue({self._leaf('int')})",
                 f"device.attributes['{domain}'][?'{name}']")
            )  # fmt: skip
        if random.random() < 0.3:  # Kubernetes accepts no list with values of other types beside those of type dyn
            items = [self._attribute() for _ in range(random.randrange(1, 3))]
        else:
            texts = ("0", "1", "3", "-1") if kind == "ints" else tuple(map(quoted, TEXTS))
            items = [random.choice(texts) for _ in range(random.randrange(1, 4))]
        return "[" + ", ".join(items) + "]"

    def _domain(self) -> str:
        return self.random.choice((*DRIVERS[:2], *DRIVERS[:2], "resource.kubernetes.io", "missing.example.com"))

    def _attribute(self, name: str = "") -> str:
        random = self.random
        name, domain = name or random.choice(NAMES), self._domain()
        return random.choice(
            (f"device.attributes['{domain}'].{name}", f'device.attributes["{domain}"].{name}',
             f"device.attributes['{domain}']['{name}']", f"device.attributes[device.driver].{name}")
        )  # fmt: skip

    def _capacity(self) -> str:
        name = self.random.choice(CAPACITIES)
        return self.random.choice(
            (f"device.capacity['{self._domain()}'].{name}", f"device.capacity[device.driver].{name}")
        )

    def _choice(self, kind: str, depth: int) -> str:
        random = self.random
        if random.random() < 0.3:
            return f"({self.of('bool', depth - 1)} ? {self.of(kind, depth - 1)} : {self.of(kind, depth - 1)})"
        if random.random() < 0.3 and kind != "optional":
            with_type = random.choice(("string", "int", "bool", "ints", "strings"))
            name, value = self._variable(), self.of(with_type, depth - 1)
            return f"cel.bind({name}, {value}, {self._within(name, with_type, kind, depth - 1)})"
        if random.random() < 0.2 and kind in ("bool", "int", "string"):
            name, domain = self._variable(), self._domain()
            body = random.choice((f"{name}.index == {self.of('int', depth - 1)}", f"has({name}.type)",
                                  f"{name}.?type.orValue('') == {self.of('string', depth - 1)}",
                                  f"{name}.exists(k, k.startsWith('t'))"))  # fmt: skip
            return f"cel.bind({name}, device.attributes['{domain}'], {body})" if kind == "bool" else self._leaf(kind)
        return self._function(kind, depth)

    def _variable(self) -> str:
        self._names += 1
        return self.random.choice(("x", "y", f"v{self._names}"))

    def _within(self, name: str, its: str, kind: str, depth: int) -> str:
        """An expression in which a variable has this type."""
        before = self._scope
        self._scope = [*[entry for entry in before if entry[0] != name], (name, its)]
        made = self.of(kind, depth)
        self._scope = before
        return made

    def _function(self, kind: str, depth: int) -> str:
        random = self.random
        templates = FUNCTIONS.get(kind)
        if not templates:
            return self._leaf(kind)
        template = random.choice(templates)
        if isinstance(template, str):
            return self._filled(template, depth)
        name, (source, element), rest = (
            self._variable(),
            random.choice((("ints", "int"), ("strings", "string"))),
            template,
        )
        if kind in ("ints", "strings"):
            source, element = kind, "int" if kind == "ints" else "string"
        macro, result = rest
        result = {"element": element}.get(result, result)
        return f"{self.of(source, depth - 1)}.{macro}({name}, {self._within(name, element, result, depth - 1)})"

    def _filled(self, template: str, depth: int) -> str:
        """`<kind>` is an expression of a kind, `<pattern>` and the like one of a list of texts."""
        parts = template.replace(">", "<").split("<") if "<<" not in template else [template]
        made: list[str] = []
        for at, part in enumerate(parts):
            made.append(self._hole(part, depth) if at % 2 else part)
        return "".join(made).replace("LT", "<").replace("GT", ">")

    def _hole(self, name: str, depth: int) -> str:
        random = self.random
        lists = {
            "pattern": PATTERNS, "name": NAMES, "loose": LOOSE, "amount": BAD_QUANTITIES,
            "field": tuple(f"device.attributes['{self._domain()}'].{name}" for name in NAMES),
            "domain": tuple(map(quoted, DRIVERS)), "small": ("0", "1", "2", "3", "-1"),
        }  # fmt: skip
        if name in lists:
            text = random.choice(lists[name])
            return quoted(text) if name in ("pattern", "loose", "amount", "name") else text
        return self.of(name, depth - 1)


FUNCTIONS: dict[str, tuple[str | tuple[str, str], ...]] = {
    "bool": (
        "<bool> && <bool>", "<bool> || <bool>", "(<bool> || <bool> || <bool>)", "!(<bool>)", "<string> == <string>",
        "<string> != <string>", "<int> == <int>", "<int> LT <int>", "<int> GT= <int>", "<double> LT= <int>",
        "<string> LT <string>", "<int> in <ints>", "<string> in <strings>", "<ints> == <ints>",
        "<string>.contains(<string>)", "<string>.startsWith(<string>)", "<string>.endsWith(<string>)",
        "<string>.matches(<pattern>)", "matches(<string>, <pattern>)", "has(<field>)",
        "<name> in device.attributes[<domain>]", "<name> in device.capacity[<domain>]",
        "<domain> in device.attributes", "<quantity>.isGreaterThan(<quantity>)", "<quantity>.isLessThan(<quantity>)",
        "<quantity> == <quantity>", "<quantity> != <quantity>", "<quantity>.compareTo(<quantity>) GT= 0",
        "isQuantity(<amount>)", "<quantity>.isInteger()", "<semver>.isGreaterThan(<semver>)",
        "<semver>.isLessThan(<semver>)", "<semver> == <semver>", "isSemver(<loose>)", "isSemver(<loose>, true)",
        "<semver>.compareTo(<semver>) == <int>", "<optional>.hasValue()", "<optional>.orValue('x') == <string>",
        "<optional>.or(<optional>).hasValue()", "<ints>.isSorted()", "<strings>.includes(<string>)",
        "<ints>.includes(<int>)", "sets.contains(<ints>, <ints>)", "sets.intersects(<strings>, <strings>)",
        "sets.equivalent(<ints>, <ints>)", "bool(<string>)", "dyn(<int>) == <double>", "dyn(<string>) == <int>",
        "<ints>.first().hasValue()", "<strings>.last().orValue('') == <string>",
        "<optional>.optMap(o, o == <string>).orValue(false)", "<optional> == <optional>",
        "{'a': <int>, 'b': <int>}.a LT <int>", "<name> in {'type': <int>}", "<bool> == <bool>",
        "<double> GT <double>", ("all", "bool"), ("exists", "bool"), ("exists_one", "bool"),
    ),
    "int": (
        "<int> + <int>", "<int> - <int>", "<int> * <small>", "<int> / <int>", "<int> % <int>", "-(<int>)",
        "size(<string>)", "<string>.size()", "<ints>.size()", "<strings>.size()", "int(<string>)", "int(<double>)",
        "<string>.indexOf(<string>)", "<string>.indexOf(<string>, <small>)", "<string>.lastIndexOf(<string>)",
        "<string>.lastIndexOf(<string>, <small>)", "<ints>.sum()", "<ints>.min()", "<ints>.max()",
        "<ints>.indexOf(<int>)", "<ints>.lastIndexOf(<int>)", "<ints>[<small>]", "<quantity>.asInteger()",
        "sign(<quantity>)", "<quantity>.compareTo(<quantity>)", "<semver>.major()", "<semver>.minor()",
        "<semver>.patch()", "<semver>.compareTo(<semver>)", "optional.of(<int>).value()", "<ints>.last().value()",
    ),
    "double": (
        "<double> + <double>", "<double> - <double>", "<double> * <double>", "double(<int>)",
        "<quantity>.asApproximateFloat()",
    ),
    "string": (
        "<string> + <string>", "<string>.lowerAscii()", "<string>.upperAscii()", "<string>.trim()",
        "<string>.charAt(<small>)", "<string>.substring(<small>)", "<string>.substring(<small>, <small>)",
        "<string>.replace(<string>, <string>)", "<string>.replace(<string>, <string>, <small>)", "<strings>.join()",
        "<strings>.join(<string>)", "<strings>[<small>]", "<string>.find(<pattern>)", "string(<int>)",
        "string(<bool>)", "<strings>.min()", "<optional>.orValue(<string>)", "<optional>.value()",
        "<strings>.first().value()",
    ),
    "quantity": (
        "<quantity>.add(<quantity>)", "<quantity>.sub(<quantity>)", "<quantity>.add(<int>)", "<quantity>.sub(<int>)",
        "quantity(<amount>)",
    ),
    "semver": (
        "semver(<loose>)", "semver(<loose>, true)",
    ),
    "ints": (
        "[1 + 2, size(<string>)]", "<ints> + <ints>", "<ints>.slice(0, <small>)", "<ints>.distinct()",
        "<ints>.reverse()", "<ints>.sort()", "[<ints>, <ints>].flatten()", "lists.range(<small>)", ("filter", "bool"),
        ("map", "int"),
    ),
    "strings": (
        "[device.driver, string(<int>)]", "<string>.split(<string>)", "<string>.split(',', <small>)",
        "<string>.findAll(<pattern>)", "<string>.findAll(<pattern>, <small>)", "<strings>.sort()",
        "<strings>.distinct()", ("map", "string"), ("filter", "bool"), "<strings> + <strings>",
    ),
    "optional": (
        "<optional>.or(<optional>)", "<optional>.optMap(o, o)", "<strings>.first()", "optional.of(<string>)",
    ),
}  # fmt: skip
"""By the type of the result. A pair is a macro: its name, and the type of its body."""
