"""What is known of the models that a run uses: prices, windows, abilities, and what makes each the same one."""

from __future__ import annotations

from bco_graph.config import Deployment, Models
from bco_graph.gateway import local
from bco_graph.gateway.deployments import Deployed, Fleet
from bco_graph.gateway.prices import Price, known_model, price_of
from bco_graph.state import JSON


def fingerprint_of(deployed: Deployed) -> dict[str, JSON]:
    return {
        "deployment": deployed.name,
        "model": deployed.model,
        "endpoint": deployed.host,
        "parameters": dict(deployed.identity.get("parameters", deployed.parameters)),
    }


def capabilities_of(deployed: Deployed) -> dict[str, JSON]:
    listed = known_model(deployed.model)
    said = {**listed, **deployed.source.model_info}.get("supports_function_calling", not listed)
    return {"tools": deployed.lane != "local" and said is True, "window": window_of(deployed)}


def priced_of(models: Models, fleet: Fleet) -> list[tuple[Deployment, Price]]:
    """Those with a price; the first of each name comes last, so that it is the one that counts."""
    known = [deployed.source for deployed in fleet.roles.values()] + models.model_list
    return [(deployment, price) for deployment in reversed(known) if (price := price_of(deployment))]


def prices_of(models: Models, fleet: Fleet) -> dict[str, JSON]:
    priced = priced_of(models, fleet)
    return {d.model_name: {"model": d.litellm_params["model"], "rates": dict(price.rates)} for d, price in priced}


def window_of(deployed: Deployed) -> int | None:
    if deployed.lane == "local":
        return local.window_of(deployed.route)
    told = {**known_model(deployed.model), **deployed.source.model_info}.get("max_input_tokens")
    return told if isinstance(told, int) else None


def windows_of(models: Models, fleet: Fleet) -> dict[str, int]:
    """By deployment; of none where litellm is to send on to another model what does not fit."""
    if "context_window_fallbacks" in {*models.router_settings, *models.litellm_settings}:
        return {}
    return {deployed.name: window for deployed in fleet.roles.values() if (window := window_of(deployed))}


def key_hint(deployed: Deployed) -> str:
    key = str(deployed.source.litellm_params.get("api_key") or "")
    if key.startswith("os.environ/"):
        return f"its key is the environment variable {key.removeprefix('os.environ/')!r}"
    return "its key stands in litellm_params.api_key" if key else "no litellm_params.api_key is given"
