from array import array

from ext_core.name_index import NameIndex

class ScanError(ValueError):
    offset: int
    message: str
    def __init__(self, offset: int, message: str) -> None: ...

def split(body: bytes, max_depth: int = 200) -> dict[str, tuple[int, int]]: ...
def items(body: bytes, start: int, end: int, max_depth: int = 200) -> list[tuple[int, int]]: ...
def node_name(body: bytes, start: int, end: int, max_depth: int = 200) -> str: ...
def rows(body: bytes, start: int, end: int, index: NameIndex) -> tuple[array[int], list[tuple[int, str]]]: ...
def split_offers(
    body: bytes, key: str, index: NameIndex
) -> tuple[dict[str, tuple[int, int]], tuple[str, str, str] | None, tuple[array[int], array[int]] | None]:
    """(what `split` returns; (uid, resourceVersion, nominatedNodeName) of the member Pod; (rows int32[n], spans
    int64[2n]) of the member `key`: node name -> victims as kube-scheduler writes it). The last two are None where there
    is no such member, or where only a JSON decoder can read it."""

def split_names(
    body: bytes, key: str, index: NameIndex
) -> tuple[dict[str, tuple[int, int]], tuple[str, str, str] | None, tuple[array[int], list[tuple[int, str]]] | None]:
    """The first two as `split_offers`; what `rows` returns of the member `key`, None: no such member, or `rows`
    fails."""
