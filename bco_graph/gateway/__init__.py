"""The model gateway: the only room that holds keys, and the only one that imports litellm.

service.py      Gateway: its thread, its faces
calls.py        one call from request to answer             booking.py    its receipt, money and stored response
group_commit.py durable writes that share a commit          askings.py    how often a job asked the same
deployments.py  roles -> deployments, keys, lanes           parameters.py what a deployment pins
about.py        what is known of the models                 notices.py    what a person should hear of once
pinning.py      what is sent, whatever was asked            dropping.py   parameters that an endpoint refuses
lanes.py        the lane protocol, retries, the forward lane
routed.py       the litellm lane                            library.py    importing litellm, late and quietly
chat_models.py  LangChain chat models given in code
local.py        the in-process models                       gguf.py       where their weights are
rendering.py    how each of them is spoken to
cache.py        responses by content                        prices.py     USD per call
replies.py      replies made whole, usage, events           failures.py   statuses as errors
http.py         the OpenAI-compatible face, bearer tokens
"""

from bco_graph.gateway.service import Gateway

__all__ = ["Gateway"]
