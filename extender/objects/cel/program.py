"""Trees of CEL to functions that evaluate them.

Types are checked first, as Kubernetes does when an expression is stored. This check accepts no more than that of
cel-go, but for the types of empty lists: what it rejects is Unsupported.

An evaluation runs on a list: what it may still spend, the device, the properties of the device that it has read,
whether it has absorbed an error, then one slot for each variable of the expression. Spent are the nodes of a loop's
body in each turn, and an eighth of the length of each text and list that a function returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from extender.objects.cel.library import FUNCTIONS, Overload, Type, pattern, type_of
from extender.objects.cel.syntax import Call, Identifier, Index, ListOf, Literal, MapOf, Node, Select
from extender.objects.cel.values import EVERYTHING, NONE, DeviceProperties, EvaluationError, Optional, Unsupported

Run = Callable[[list[Any]], Any]
SPENT: Final = 0
DEVICE: Final = 1
READ: Final = 2
ABSORBED: Final = 3
FIRST_SLOT: Final = 4
MOST_SPENT: Final = 5_000
"""What one evaluation may spend: about 2 ms."""
_UNSET: Final = object()

_DEVICE: Final = "device"
_DOMAINS: Final = {"attributes": "domains", "capacity": "domains of capacity"}
_ITEMS: Final = {"domains": "attributes", "domains of capacity": "capacities"}
_PERHAPS: Final = {"attributes": "perhaps attributes", "capacities": "perhaps capacities"}
"""Types that only selections, `in`, `has`, loops and cel.bind take: the maps of a device, and optional ones."""
_OF_DEVICE: Final = frozenset((_DEVICE, *_DOMAINS.values(), *_ITEMS.values(), *_PERHAPS.values()))
_VALUE: Final = {"attributes": "dyn", "capacities": "quantity"}
_MACROS: Final = frozenset(("all", "exists", "exists_one", "existsOne", "map", "filter", "transformList"))
_OPEN: Final = ("dyn", "any")
_CONVERSIONS: Final = frozenset(("bool", "int", "double", "string"))
_PANICS: Final = frozenset(("distinct", "sort"))
"""At errors in their arguments the cost tracker of cel-go 0.29 panics: what absorbs an error does not absorb that."""
_PATTERNS: Final = frozenset(("matches", "find", "findAll"))


class Part(NamedTuple):
    """A node that is compiled."""

    type: Type
    run: Run
    nodes: int  # how many nodes it has
    literal: Any = _UNSET


class Program(NamedTuple):
    """An expression that is compiled."""

    run: Run
    slots: int  # of the list that it runs on
    panics: bool  # it may fail although it absorbs an error


def program_of(node: Node) -> Program:
    """Unsupported where it has what we do not evaluate, or Kubernetes rejects its types."""
    compiler = _Compiler()
    part = compiler.part(node)
    if part.type not in ("bool", "dyn"):
        raise Unsupported("it is no boolean")
    return Program(part.run, compiler.slots, compiler.panics)


class _Compiler:
    def __init__(self) -> None:
        self.slots, self.panics = FIRST_SLOT, False
        self._scope: dict[str, Part] = {}

    def part(self, node: Node) -> Part:
        if isinstance(node, Literal):
            value = node.value
            return Part(type_of(value), lambda _: value, 1, value)
        if isinstance(node, Identifier):
            return self._named(node.name)
        if isinstance(node, Select):
            return self._select(self.part(node.operand), _literal(node.field), optional=node.optional)
        if isinstance(node, Index):
            return self._select(self.part(node.operand), self.part(node.key), optional=node.optional)
        if isinstance(node, ListOf):
            return self._list([self.part(item) for item in node.items])
        if isinstance(node, MapOf):
            return self._map([(self.part(key), self.part(value)) for key, value in node.entries])
        return self._call(node)

    def _named(self, name: str) -> Part:
        if name in self._scope:
            return self._scope[name]
        if name == "device":
            return Part(_DEVICE, lambda e: e[DEVICE], 1)
        raise Unsupported(f"{name} is not known")

    @contextmanager
    def _variable(self, node: Node, kind: Type, lazily: Run | None = None) -> Iterator[int]:
        """A variable, named by a node, while its body is compiled; its slot. `lazily`: what it is set to when it is
        read first."""
        if not isinstance(node, Identifier):
            raise Unsupported("the variable of a macro is no name")
        if kind == "any":
            raise Unsupported("a variable without a type")
        slot, before = self.slots, dict(self._scope)
        self.slots += 1

        def read(e: list[Any]) -> Any:
            value = e[slot]
            if value is _UNSET and lazily is not None:
                value = e[slot] = lazily(e)
            return value

        self._scope[node.name] = Part(kind, read, 1)
        yield slot
        self._scope = before

    # -- literals

    def _list(self, parts: list[Part]) -> Part:
        kind = _homogeneous(parts)
        runs = [part.run for part in parts]
        if all(part.literal is not _UNSET for part in parts):
            value = tuple([part.literal for part in parts])
            return Part(("list", kind), lambda _: value, 1 + len(parts))
        return Part(("list", kind), lambda e: tuple([run(e) for run in runs]), _nodes(parts))

    def _map(self, entries: list[tuple[Part, Part]]) -> Part:
        kind = _homogeneous([value for _, value in entries])
        if not all(isinstance(key.literal, str) for key, _ in entries):
            raise Unsupported("a map with other keys than texts")
        if len({key.literal for key, _ in entries}) < len(entries):
            raise Unsupported("a map with a repeated key")
        pairs = [(key.literal, value.run) for key, value in entries]
        nodes = _nodes([value for _, value in entries])
        return Part(("map", "string", kind), lambda e: {key: run(e) for key, run in pairs}, nodes)

    # -- selections

    def _select(self, operand: Part, key: Part, *, optional: bool) -> Part:
        of = operand.type
        nodes = operand.nodes + key.nodes
        if of == _DEVICE:
            return _of_device(key, optional=optional)
        if of in _ITEMS:
            return _domain(of, key, optional=optional)
        if of in _VALUE or of in _PERHAPS.values():
            return _property(operand, key, optional=optional)
        if key.type not in ("string", "int", "dyn"):
            raise Unsupported("a key that is neither text nor integer")
        optional_operand = isinstance(of, tuple) and of[0] == "optional"
        of = of[1] if optional_operand else of
        if of != "dyn" and not (isinstance(of, tuple) and of[0] in ("list", "map")):
            raise Unsupported(f"a selection of a {of}")
        result: Type = "dyn" if of == "dyn" else of[-1]
        if of != "dyn" and key.type not in ("dyn", "int" if of[0] == "list" else of[1]):
            raise Unsupported("a key of another type")
        value, name = operand.run, key.run
        if optional or optional_operand:
            return Part(("optional", result), lambda e: _perhaps(value(e), name(e)), nodes)
        return Part(result, lambda e: _item(value(e), name(e)), nodes)

    # -- calls

    def _call(self, node: Call) -> Part:
        target, name, arguments = node
        special = self._special(target, name, arguments)
        if special is not None:
            return special
        namespace = isinstance(target, Identifier) and target.name not in self._scope and target.name != "device"
        if isinstance(target, Identifier) and namespace:
            name, target = f"{target.name}.{name}", None
        parts = [self.part(argument) for argument in ([] if target is None else [target]) + list(arguments)]
        if name == "in" and parts[1].type in (*_VALUE, *_ITEMS):
            return _is_in(parts[0], parts[1])
        if name in ("or", "orValue") and target is not None and len(parts) == 2:
            return _or(parts[0], _plain(parts[1]), value=name == "orValue")
        member = target is not None
        overloads = [overload for overload in FUNCTIONS.get(name, ()) if (overload.member if member else overload.free)]
        self.panics = self.panics or name in _PANICS
        if name in _PATTERNS and len(parts) > 1:
            if not isinstance(parts[1].literal, str):
                raise Unsupported("a regular expression that is no literal")
            pattern(parts[1].literal)
        called = _called(name, overloads, [_plain(part) for part in parts])
        return _folded(called) if name in _CONVERSIONS and parts[0].literal is not _UNSET else called

    def _special(self, target: Node | None, name: str, arguments: tuple[Node, ...]) -> Part | None:
        """What does not evaluate all its arguments, or not once."""
        if target is None:
            if name in ("&&", "||"):
                return _logic([self.part(argument) for argument in arguments], stop=name == "||")
            if name == "?:":
                return _choice(*[self.part(argument) for argument in arguments])
            if name == "has" and len(arguments) == 1:
                return self._has(arguments[0])
            return None
        if isinstance(target, Identifier) and (target.name, name, len(arguments)) == ("cel", "bind", 3):
            return self._bind(*arguments)
        if name in _MACROS and len(arguments) in (2, 3, 4):
            return self._loop(self.part(target), name, arguments)
        if name in ("optMap", "optFlatMap") and len(arguments) == 2:
            return self._mapped(self.part(target), arguments[0], arguments[1], flat=name == "optFlatMap")
        return None

    def _has(self, node: Node) -> Part:
        if not isinstance(node, Select) or node.optional:
            raise Unsupported("has() of something that is no selection")
        operand, field = self.part(node.operand), node.field
        run = operand.run
        if operand.type in _VALUE:
            return _is_in(_literal(field), operand)
        if operand.type != "dyn" and not (isinstance(operand.type, tuple) and operand.type[0] == "map"):
            raise Unsupported("has() of something that is no map")

        def has(e: list[Any]) -> bool:
            value = run(e)
            if type(value) is not dict:
                raise EvaluationError("no such overload: has")
            return field in value

        return Part("bool", has, operand.nodes + 1)

    def _bind(self, variable: Node, value: Node, body: Node) -> Part:
        bound = self.part(value)
        with self._variable(variable, bound.type, bound.run) as slot:
            part = self.part(body)

        def bind(e: list[Any]) -> Any:
            e[slot] = _UNSET
            return part.run(e)

        return Part(part.type, bind, bound.nodes + part.nodes + 1)

    def _mapped(self, operand: Part, variable: Node, body: Node, *, flat: bool) -> Part:
        if not (isinstance(operand.type, tuple) and operand.type[0] == "optional"):
            raise Unsupported("optMap of a value that is not optional")
        with self._variable(variable, operand.type[1]) as slot:
            part = _plain(self.part(body))
        if flat and not (isinstance(part.type, tuple) and part.type[0] == "optional"):
            raise Unsupported("optFlatMap to a value that is not optional")
        value, run = operand.run, part.run

        def mapped(e: list[Any]) -> Any:
            optional = value(e)
            if not optional.some:
                return NONE
            e[slot] = optional.value
            return run(e) if flat else Optional(some=True, value=run(e))

        return Part(part.type if flat else ("optional", part.type), mapped, operand.nodes + part.nodes + 1)

    # -- loops

    def _loop(self, source: Part, name: str, arguments: tuple[Node, ...]) -> Part:
        kind, keyed = source.type, source.type in _VALUE
        is_list = isinstance(kind, tuple) and kind[0] == "list"
        is_map = keyed or (isinstance(kind, tuple) and kind[0] == "map")
        if not (is_list or is_map or kind == "dyn"):
            raise Unsupported(f"{name} of something that is no list")
        if is_map and name not in ("all", "exists"):
            raise Unsupported(f"{name} of a map")
        slots: tuple[int, ...]
        numbered = name == "transformList" or (len(arguments) == 3 and name != "map")
        if numbered and not is_list:
            raise Unsupported(f"{name} with two variables of something that is no list")
        element: Type = "string" if keyed else kind[1] if isinstance(kind, tuple) else "dyn"
        rest = list(arguments)
        if numbered:
            with self._variable(rest[0], "int") as first, self._variable(rest[1], element) as second:
                bodies = [_plain(self.part(body)) for body in rest[2:]]
            slots = (first, second)
        else:
            with self._variable(rest[0], element) as first:
                bodies = [_plain(self.part(body)) for body in rest[1:]]
            slots = (first,)
        collects = name in ("map", "transformList")
        if not 1 <= len(bodies) <= 1 + collects:
            raise Unsupported(f"{name} with another number of arguments")
        tests = bodies[:-1] if collects else bodies
        if any(test.type not in ("bool", "dyn") for test in tests):
            raise Unsupported(f"{name} with a test that is no boolean")
        cost = _nodes(bodies)
        turns = _turns(source, slots, cost, ordered=name not in ("all", "exists"))
        result: Type = ("list", bodies[-1].type) if collects else kind if name == "filter" else "bool"
        return Part(result, _loops(name, turns, [body.run for body in bodies], slots[-1]), source.nodes + cost)


# -- loops -------------------------------------------------------------------------------------------------------------


def _turns(source: Part, slots: tuple[int, ...], cost: int, *, ordered: bool) -> Callable[[list[Any]], Iterator[None]]:
    """A function that sets the variables of a loop turn by turn. `ordered`: the order of the turns matters."""
    run, of_device = source.run, source.type in _VALUE

    def turns(e: list[Any]) -> Iterator[None]:
        items = run(e)
        if of_device:
            items = items.names(e)
        elif type(items) is dict:
            if ordered:
                raise Unsupported("a loop over a map, whose order is by chance")
        elif type(items) is not tuple:
            raise EvaluationError("no such overload: a loop")
        for at, item in enumerate(items):
            _spend(e, cost)
            e[slots[-1]] = item
            if len(slots) > 1:
                e[slots[0]] = at
            yield

    return turns


def _loops(name: str, turns: Callable[[list[Any]], Iterator[None]], bodies: list[Run], slot: int) -> Run:
    test, value = bodies[0], bodies[-1]

    def any_or_all(e: list[Any]) -> bool:
        error: EvaluationError | None = None
        for _ in turns(e):
            try:
                if _truth(test(e)) is stop:
                    e[ABSORBED] = e[ABSORBED] or error is not None
                    return stop
            except EvaluationError as raised:
                error = raised
        if error is not None:
            raise error
        return not stop

    def one(e: list[Any]) -> bool:
        return sum([_truth(test(e)) for _ in turns(e)]) == 1

    def kept(e: list[Any]) -> tuple[Any, ...]:
        return tuple([e[slot] for _ in turns(e) if _truth(test(e))])

    def each(e: list[Any]) -> tuple[Any, ...]:
        if len(bodies) == 1:
            return tuple([value(e) for _ in turns(e)])
        return tuple([value(e) for _ in turns(e) if _truth(test(e))])

    stop = name == "exists"
    if name in ("all", "exists"):
        return any_or_all
    return {"filter": kept, "map": each, "transformList": each}.get(name, one)


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise EvaluationError("no such overload: a test that is no boolean")


# -- the device --------------------------------------------------------------------------------------------------------


class _Items(NamedTuple):
    """The attributes or the capacities of a domain."""

    capacity: bool
    domain: str

    def value(self, e: list[Any], name: Any) -> Any:
        """None without it."""
        if type(name) is not str:
            return None
        place = (self.capacity, self.domain, name)
        e[READ].add(place)
        return e[DEVICE].value(place)

    def names(self, e: list[Any]) -> list[str]:
        e[READ].add(EVERYTHING)
        device: DeviceProperties = e[DEVICE]
        return device.names(self.capacity, self.domain)


def _of_device(key: Part, *, optional: bool) -> Part:
    """A field of the device."""
    if optional or not isinstance(key.literal, str):
        raise Unsupported("the device with another key than a name")
    if key.literal == "driver":
        return Part("string", lambda e: e[DEVICE].driver, 2)
    if key.literal == "allowMultipleAllocations":
        return Part("bool", lambda e: e[DEVICE].multiple, 2)
    if key.literal in _DOMAINS:
        return Part(_DOMAINS[key.literal], lambda e: e[DEVICE], 2)
    raise Unsupported(f"device.{key.literal} is not known")


def _domain(of: str, key: Part, *, optional: bool) -> Part:
    """The properties of a domain: none where the device has no such domain."""
    if key.type not in ("string", "dyn"):
        raise Unsupported("a domain that is no text")
    capacity, name, kind = of != "domains", key.run, _ITEMS[of]
    if isinstance(key.literal, str):
        items = _Items(capacity, key.literal)
        return Part(_PERHAPS[kind] if optional else kind, lambda _: items, 2)

    def domain(e: list[Any]) -> _Items:
        value = name(e)
        if type(value) is not str:
            raise Unsupported("a domain that is no text")
        return _Items(capacity, value)

    return Part(_PERHAPS[kind] if optional else kind, domain, 2 + key.nodes)


def _property(operand: Part, key: Part, *, optional: bool) -> Part:
    """An attribute or a capacity."""
    if key.type not in ("string", "dyn"):
        raise Unsupported("a name that is no text")
    perhaps = optional or operand.type in _PERHAPS.values()
    kind = _VALUE["capacities" if "capacities" in operand.type else "attributes"]
    items, name, nodes = operand.run, key.run, operand.nodes + key.nodes

    def required(e: list[Any]) -> Any:
        key = name(e)
        value = items(e).value(e, key)
        if value is None:
            raise EvaluationError(f"no such key: {key}")
        return value

    def stated(e: list[Any]) -> Optional:
        value = items(e).value(e, name(e))
        return NONE if value is None else Optional(some=True, value=value)

    if perhaps:
        return Part(("optional", kind), stated, nodes)
    return Part(kind, required, nodes)


def _is_in(key: Part, of: Part) -> Part:
    """Whether the device has the domain, or states the property."""
    if key.type not in ("string", "dyn"):
        raise Unsupported("a key that is no text")
    name, items, capacity = key.run, of.run, of.type == "domains of capacity"

    def has_domain(e: list[Any]) -> bool:
        value = name(e)
        e[READ].add(EVERYTHING)
        return bool(e[DEVICE].names(capacity, value))

    def has_name(e: list[Any]) -> bool:
        value = name(e)
        if type(value) is not str:
            raise Unsupported("a key that is no text")
        return items(e).value(e, value) is not None

    return Part("bool", has_domain if of.type in _ITEMS else has_name, key.nodes + of.nodes)


# -- parts -------------------------------------------------------------------------------------------------------------


def _literal(value: str) -> Part:
    return Part("string", lambda _: value, 1, value)


def _nodes(parts: list[Part]) -> int:
    return 1 + sum(part.nodes for part in parts)


def _plain(part: Part) -> Part:
    """The part, where it is no map of the device."""
    if isinstance(part.type, str) and part.type in _OF_DEVICE:
        raise Unsupported(f"the {part.type} of the device as a value")
    return part


def _homogeneous(parts: list[Part]) -> Type:
    """The type of the elements of a literal: Kubernetes accepts no others than of one type."""
    kinds = [_plain(part).type for part in parts] or ["any"]
    if any(kind != kinds[0] for kind in kinds):
        raise Unsupported(f"a list or map of {_name(kinds[0])} and others")
    return kinds[0]


def _spend(e: list[Any], cost: int) -> None:
    e[SPENT] -= cost
    if e[SPENT] < 0:
        raise Unsupported("it is too costly")


def _item(of: Any, key: Any) -> Any:
    if type(of) is tuple:
        if type(key) is not int:
            raise Unsupported("an index that is no integer")
        if not 0 <= key < len(of):
            raise EvaluationError("index out of bounds")
        return of[key]
    if type(of) is not dict:
        raise EvaluationError("no such overload: a selection")
    if type(key) is not str:
        raise Unsupported("a key that is no text")
    if key not in of:
        raise EvaluationError(f"no such key: {key}")
    return of[key]


def _perhaps(of: Any, key: Any) -> Optional:
    if type(of) is Optional:
        return _perhaps(of.value, key) if of.some else NONE
    if type(of) not in (tuple, dict):
        raise Unsupported("an optional selection of something that is no map")
    try:
        return Optional(some=True, value=_item(of, key))
    except EvaluationError:
        return NONE


def _logic(parts: list[Part], *, stop: bool) -> Part:
    """`||` (stop True) or `&&`: the value that stops counts more than an error before or after it."""
    if any(part.type not in ("bool", "dyn") for part in parts):
        raise Unsupported("a logical operator of something that is no boolean")
    runs = [part.run for part in parts]

    def logic(e: list[Any]) -> bool:
        error: EvaluationError | None = None
        for run in runs:
            try:
                value = run(e)
            except EvaluationError as raised:
                error = raised
                continue
            if value is stop:
                e[ABSORBED] = e[ABSORBED] or error is not None
                return bool(stop)
            if not isinstance(value, bool):
                error = EvaluationError("no such overload: a logical operator")
        if error is not None:
            raise error
        return not stop

    return Part("bool", logic, _nodes(parts))


def _choice(test: Part, then: Part, otherwise: Part) -> Part:
    if test.type not in ("bool", "dyn"):
        raise Unsupported("a condition that is no boolean")
    kind = _joined(_plain(then).type, _plain(otherwise).type)
    if_run, then_run, else_run = test.run, then.run, otherwise.run
    return Part(kind, lambda e: then_run(e) if _truth(if_run(e)) else else_run(e), _nodes([test, then, otherwise]))


def _or(first: Part, second: Part, *, value: bool) -> Part:
    """`optional.orValue(value)`, or `optional.or(optional)`."""
    if not (isinstance(first.type, tuple) and first.type[0] == "optional"):
        raise Unsupported("or of a value that is not optional")
    kind = _joined(first.type[1] if value else first.type, second.type)
    run, other = first.run, second.run

    def either(e: list[Any]) -> Any:
        optional = run(e)
        if not optional.some:
            return other(e)
        return optional.value if value else optional

    return Part(kind, either, first.nodes + second.nodes)


# -- overloads ---------------------------------------------------------------------------------------------------------


def _called(name: str, overloads: list[Overload], parts: list[Part]) -> Part:
    kinds = [part.type for part in parts]
    matching: list[tuple[Overload, Type]] = []
    for overload in overloads:
        bound: dict[str, Type] = {}
        if len(overload.parameters) == len(kinds) and all(
            _accepts(parameter, kind, bound) for parameter, kind in zip(overload.parameters, kinds, strict=True)
        ):
            matching.append((overload, _filled(overload.result, bound)))
    if not matching:
        raise Unsupported(f"{name} of {', '.join(map(_name, kinds)) or 'nothing'}")
    if len(matching) > 1 and any(map(_is_open, kinds)):
        raise Unsupported(f"{name} of a value without a type")  # cel-go takes the first overload that it knows
    results = [result for _, result in matching]
    result = results[0] if all(other == results[0] for other in results) else "dyn"
    function = matching[0][0].function
    if len(matching) > 1 or any(map(_is_dynamic, kinds)):
        function = _dispatched(name, [overload for overload, _ in matching])
    grows = result == "string" or result == "dyn" or (isinstance(result, tuple) and result[0] == "list")
    return Part(result, _applied(function, [part.run for part in parts], grows=grows), _nodes(parts))


def _folded(part: Part) -> Part:
    """A conversion of a literal. Where it fails Kubernetes does not accept the expression."""
    try:
        value = part.run([MOST_SPENT, None, set(), False])
    except EvaluationError as error:
        raise Unsupported(f"a conversion of a literal: {error}") from None
    return Part(part.type, lambda _: value, part.nodes, value)


def _applied(function: Callable[..., Any], runs: list[Run], *, grows: bool) -> Run:
    if grows or len(runs) > 2:

        def general(e: list[Any]) -> Any:
            value = function(*[run(e) for run in runs])
            if type(value) is str or type(value) is tuple:
                _spend(e, len(value) >> 3)
            return value

        return general
    if len(runs) == 1:
        only = runs[0]
        return lambda e: function(only(e))
    if len(runs) == 2:
        first, second = runs
        return lambda e: function(first(e), second(e))
    return lambda _: function()


def _dispatched(name: str, overloads: list[Overload]) -> Callable[..., Any]:
    """The overload by the types of the values."""
    choices = [(tuple(map(_head, overload.parameters)), overload.function) for overload in overloads]

    def dispatched(*values: Any) -> Any:
        kinds = [type_of(value) for value in values]
        for heads, function in choices:
            if all(head in ("dyn", kind) for head, kind in zip(heads, kinds, strict=True)):
                return function(*values)
        raise EvaluationError(f"no such overload: {name}")

    return dispatched


def _head(kind: Type) -> str:
    return "dyn" if kind in ("A", "B") else kind[0] if isinstance(kind, tuple) else kind


def _accepts(parameter: Type, kind: Type, bound: dict[str, Type]) -> bool:
    """Whether a value of this type may be the argument. `bound`: what "A" stands for."""
    if parameter in ("A", "B"):
        before = bound.get(parameter, kind)
        bound[parameter] = _either(before, kind)
        return _agrees(before, kind)
    if parameter == "dyn" or kind in _OPEN:
        return True
    if isinstance(parameter, tuple) and isinstance(kind, tuple):
        return parameter[0] == kind[0] and all(
            _accepts(inner, given, bound) for inner, given in zip(parameter[1:], kind[1:], strict=True)
        )
    return bool(parameter == kind)


def _agrees(first: Type, second: Type) -> bool:
    if first in _OPEN or second in _OPEN:
        return True
    if isinstance(first, tuple) and isinstance(second, tuple):
        return bool(first[0] == second[0] and all(map(_agrees, first[1:], second[1:])))
    return bool(first == second)


def _joined(first: Type, second: Type) -> Type:
    """The type of either. Unsupported where they differ."""
    if isinstance(second, str) and second in _OF_DEVICE:
        raise Unsupported(f"the {second} of the device as a value")
    if not _agrees(first, second):
        raise Unsupported(f"{_name(first)} and {_name(second)} where one type is asked for")
    return _either(first, second)


def _either(first: Type, second: Type) -> Type:
    """The type of both, where they agree."""
    if isinstance(first, tuple) and isinstance(second, tuple):
        return (first[0], *map(_either, first[1:], second[1:]))
    if first == "any" or second == "any":
        return second if first == "any" else first
    return first if first == second else "dyn"


def _filled(kind: Type, bound: dict[str, Type]) -> Type:
    if isinstance(kind, tuple):
        return (kind[0], *[_filled(inner, bound) for inner in kind[1:]])
    return bound.get(kind, "any") if kind in ("A", "B") else kind


def _is_dynamic(kind: Type) -> bool:
    return any(map(_is_dynamic, kind[1:])) if isinstance(kind, tuple) else kind in _OPEN


def _is_open(kind: Type) -> bool:
    return any(map(_is_open, kind[1:])) if isinstance(kind, tuple) else kind == "any"


def _name(kind: Type) -> str:
    return f"{kind[0]}({', '.join(map(_name, kind[1:]))})" if isinstance(kind, tuple) else str(kind)
