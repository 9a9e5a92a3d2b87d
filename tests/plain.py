"""Plain HTTP to a server of the tests. Unless httpx verifies no certificate, it reads all of the system for each
client, which takes 20 ms of a processor. No proxy in the environment is meant for loopback."""

from __future__ import annotations

from functools import partial
from typing import Final

import httpx

client: Final = partial(httpx.Client, trust_env=False, verify=False, timeout=30)
get: Final = partial(httpx.get, trust_env=False, verify=False, timeout=30)
post: Final = partial(httpx.post, trust_env=False, verify=False, timeout=30)
