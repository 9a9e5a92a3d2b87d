"""What a server is asked."""

from __future__ import annotations

import pytest

from extender.errors import BadInput
from extender.web import whatif_page


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", b'{"objects":{}}', b'{"pods":"a/b"}', b'{"pods":["a"]}', b'{"pods":["a/b/c"]}',
        b'{"pods":[1]}',
        b'{"add":[{}]}', b'{"add":[{"count":true,"like":"n"}]}', b'{"add":[{"count":0,"like":"n"}]}', b'{"other":1}',
        b'{"cordon":[1]}', b'{"objects":[1]}', b'{"objects":[{"kind":"Pod","spec":1}]}', b"{}",
        b'{"objects":[{"kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"resources":{"limits":{"nvidia.com/gpu":"x"}}}]}}]}',
    ],
)  # fmt: skip
def test_a_body_that_is_no_question(body: bytes) -> None:
    with pytest.raises(BadInput):
        whatif_page.question(body, frozenset({"nvidia.com/gpu"}))
