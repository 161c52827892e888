"""The model gateway: the only room that holds keys, and the only one that imports litellm.

service.py      Gateway: its thread, its faces, what it knows about the models
calls.py        one call from request to receipt
deployments.py  roles -> deployments, keys, lanes          parameters.py  what a deployment pins
pinning.py      what is sent, whatever was asked
lanes.py        the lane protocol, retries, the forward lane
routed.py       the litellm lane                            library.py   importing litellm, late and quietly
local.py        the in-process models                       gguf.py      where their weights are
rendering.py    how each of them is spoken to
cache.py        responses by content                        prices.py    USD per call
replies.py      replies made whole, usage, events           failures.py  statuses as errors, redaction
http.py         the OpenAI-compatible face, bearer tokens
"""

from bco_graph.gateway.service import Gateway

__all__ = ["Gateway"]
