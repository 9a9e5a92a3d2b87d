"""The tests' own client: objects that no parser likes are still readable."""

from __future__ import annotations

import json

from tests.e2e.api import Object, decode


def test_an_object_that_is_nested_too_deeply_is_read_without_its_managed_fields() -> None:
    deep = b'{"f:a":' * 3000 + b"{}" + b"}" * 3000
    one = b'{"metadata":{"name":"a","managedFields":[{"fieldsV1":%s,"manager":"}\\"{"}]},"spec":{"x":1}}'
    listed = b'{"items":[' + one % deep + b"," + one % b'{"k:{\\"name\\":\\"}\\"}":{}}' + b"]}"
    found = decode(listed)["items"]
    assert [item["spec"] for item in found] == [{"x": 1}, {"x": 1}]
    assert found[0]["metadata"]["managedFields"] == [{"fieldsV1": {}, "manager": '}"{'}]


def test_other_objects_are_read_whole() -> None:
    item: Object = {"metadata": {"managedFields": [{"fieldsV1": {"f:a": {}}}]}}
    assert decode(json.dumps(item).encode()) == item
