"""The one place that imports litellm, late and quietly."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import Any


def litellm() -> Any:
    """The litellm module. The first call takes about 5 s and 200 MB; call it off the event loop, or before it matters.

    The local model map is chosen before the import, which would otherwise fetch one from the network. What litellm
    prints and logs is turned off: it repeats requests and keys, and every failure is in the receipts. Some of its
    modules, a few of them imported by its first call, make pydantic warn about `ReadOnly` items of TypedDicts
    (a UserWarning); nothing here writes to these, so that warning is ignored, by its text. So is what its streams do
    to pydantic's models.
    """
    if (loaded := sys.modules.get("litellm")) is not None and getattr(loaded, "suppress_debug_info", False):
        ignore_warnings_of_models()
        return loaded
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    ignore_warnings_of_models()
    import litellm as module

    module.suppress_debug_info = True
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return module


def ignore_warnings_of_models() -> None:
    warnings.filterwarnings("ignore", message=r"Items? .* on TypedDict class .* `ReadOnly`", category=UserWarning)
    warnings.filterwarnings(
        "ignore", message=r"Accessing the 'model_\w+' attribute on the instance", category=DeprecationWarning
    )
