"""Roles -> deployments: the model behind each role, its pinned parameters, its key, and the lane that reaches it.

Keys written as `os.environ/NAME` are resolved here, once, when the gateway is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, cast, get_args
from urllib.parse import urlsplit

from bco_graph.config import Deployment, Models, Roles, nearest
from bco_graph.errors import ConfigError
from bco_graph.gateway.parameters import FORWARDED, is_route, parameters_of
from bco_graph.model_sections import CODE
from bco_graph.protocols import Role
from bco_graph.receipts import dumps
from bco_graph.redaction import secrets_in
from bco_graph.state import JSON

LaneName = Literal["litellm", "forward", "local", "chat_model"]

_DIRECT = ("openai/", "hosted_vllm/")


@dataclass(frozen=True)
class Deployed:
    """What a role calls. `parameters` win over what a caller asks; `route` is how it is reached, keys included.

    `drop_params`: what the endpoint refuses is left out, on record; `left_out` names what always is, and by what.
    `own_retries`: the model retries by itself. `identity` is, of a model given in code, what makes it the same one.
    """

    role: Role
    name: str
    model: str
    lane: LaneName
    parameters: Mapping[str, JSON]
    route: Mapping[str, Any] = field(repr=False)
    source: Deployment = field(repr=False)
    drop_params: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)
    own_retries: bool = False
    identity: Mapping[str, JSON] = field(default_factory=dict)

    @cached_property
    def api_base(self) -> str | None:
        base = self.route.get("api_base") or self.route.get("base_url")
        return None if base is None else str(base).rstrip("/")

    @cached_property
    def endpoint(self) -> str:
        """Where the model answers: part of each response's identity, and free of credentials."""
        if self.lane == "local":
            return "in-process"
        if self.lane == "chat_model":
            return dumps(self.identity)
        if self.api_base is None:
            return self.model.partition("/")[0]
        parts = urlsplit(self.api_base)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()

    @property
    def host(self) -> str:
        if self.lane == "chat_model":
            return str(self.identity["class"])
        return urlsplit(self.endpoint).netloc or self.endpoint


@dataclass(frozen=True)
class Fleet:
    """All roles in use. `problems` holds, for a role that cannot be called as things stand, the reason."""

    roles: Mapping[Role, Deployed]
    problems: Mapping[Role, ConfigError]
    router: list[dict[str, Any]] = field(repr=False)
    """litellm's model_list with its keys filled in; deployments whose key is missing are left out."""
    secrets: frozenset[str] = field(repr=False)


def resolve(
    models: Models, roles: Roles, environ: Mapping[str, str], in_code: Mapping[Role, Deployed] | None = None
) -> Fleet:
    """Look up every role's deployment and key; `in_code` are those of models given in code. Raises ConfigError for a
    wrong parameter or a mixed target."""
    found: dict[Role, Deployed] = {}
    problems: dict[Role, ConfigError] = {}
    for role in get_args(Role):
        name = getattr(roles, role)
        if in_code and role in in_code:
            found[cast(Role, role)] = in_code[cast(Role, role)]
            continue
        if name is None:
            continue
        try:
            found[role] = _deployed(cast(Role, role), name, models, environ)
        except _KeyMissing as missing:
            problems[role] = ConfigError(
                f"role {role!r}, deployment {name!r}: the environment variable {missing.variable!r} is not set, "
                f"which litellm_params.{missing.where} names; export it and run again"
            )
    pinned = {deployed.name for deployed in found.values() if deployed.parameters}
    entries = (_router_entry(deployment, environ, pinned) for deployment in models.model_list)
    router = [entry for entry in entries if entry is not None]
    routes = [deployed.route for deployed in found.values()] + [entry["litellm_params"] for entry in router]
    return Fleet(found, problems, router, frozenset(value for route in routes for _, value in secrets_in(route)))


class _KeyMissing(Exception):
    def __init__(self, variable: str, where: str) -> None:
        super().__init__(variable)
        self.variable = variable
        self.where = where


def _deployed(role: Role, name: str, models: Models, environ: Mapping[str, str]) -> Deployed:
    group = [deployment for deployment in models.model_list if deployment.model_name == name]
    if not group and name == CODE:
        raise ConfigError(
            f"roles.{role} is {CODE!r}, but no model is given in code: create_bco(config, models={{{role!r}: model}}), "
            "or name a deployment of models.model_list"
        )
    if not group:
        names = [deployment.model_name for deployment in models.model_list]
        raise ConfigError(
            f"roles.{role} names the deployment {name!r}, which models.model_list does not have"
            f"{nearest(name, names)}; available: {', '.join(names) or 'none'}"
        )
    first = group[0]
    model, parameters = str(first.litellm_params["model"]), parameters_of(first)
    if any((str(other.litellm_params["model"]), parameters_of(other)) != (model, parameters) for other in group[1:]):
        if role == "target":
            raise ConfigError(
                f"deployments named {name!r} differ in model or parameters: role {role!r} needs one frozen model; "
                "give them other names, or make them differ in endpoint and key only"
            )
        parameters = {}  # each deployment of the group keeps its own
    route = _filled({key: value for key, value in first.litellm_params.items() if is_route(key)}, environ)
    _check_route(name, route)
    lane = _lane(first, models, alone=len(group) == 1, role=role)
    drop, also = (first.litellm_params.get(key) for key in ("drop_params", "additional_drop_params"))
    left_out = {str(key): "litellm_params.additional_drop_params" for key in also or ()}
    drops = models.litellm_settings.get("drop_params") is True if drop is None else drop is True
    return Deployed(role, name, model, lane, parameters, route, first, drop_params=drops, left_out=left_out)


def _check_route(name: str, route: Mapping[str, Any]) -> None:
    """Raises ConfigError for what no call could be made with; values are not shown, they may hold a key."""
    where = f"deployment {name!r}: litellm_params"
    for key in ("api_base", "base_url"):
        if route.get(key) and not _is_url(route[key]):
            raise ConfigError(f"{where}.{key} is no URL of an endpoint, such as http://127.0.0.1:8000/v1")
    for key in ("extra_headers", "headers"):
        headers = route.get(key) or {}
        if not isinstance(headers, Mapping) or not all(isinstance(value, str) for value in headers.values()):
            raise ConfigError(f"{where}.{key} is no mapping of names to texts")
    also = route.get("additional_drop_params") or []
    if not isinstance(also, list) or not all(isinstance(name, str) for name in also):
        raise ConfigError(f"{where}.additional_drop_params is {also!r}; expected a list of names")


def _is_url(text: Any) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except (ValueError, TypeError, AttributeError):
        return False


def _lane(deployment: Deployment, models: Models, *, alone: bool, role: Role) -> LaneName:
    """`local` for models in this process; `forward` where the deployment speaks OpenAI's protocol itself and
    nothing is asked of litellm but that; else `litellm`. `model_info.lane` chooses between the last two."""
    params, asked = deployment.litellm_params, deployment.model_info.get("lane")
    ours = {"drop_params", "additional_drop_params"}
    if str(params["model"]).startswith("local/"):
        return "local"
    direct = str(params["model"]).startswith(_DIRECT) and bool(params.get("api_base") or params.get("base_url"))
    if asked not in (None, "litellm", "forward") or (asked == "forward" and not direct):
        raise ConfigError(
            f"deployment {deployment.model_name!r} (role {role!r}): model_info.lane is {asked!r}; expected 'litellm', "
            "or 'forward' where the model is openai/... or hosted_vllm/... and has an api_base"
        )
    plain = all(not is_route(name) or name in FORWARDED | ours or "cost" in name for name in params)
    settings = bool(models.router_settings) or bool(set(models.litellm_settings) - ours)
    free = alone and direct and plain and not settings
    return "forward" if asked == "forward" or (free and asked is None) else "litellm"


def _filled(params: Mapping[str, Any], environ: Mapping[str, str], where: str = "") -> dict[str, Any]:
    """Parameters with every `os.environ/NAME` replaced by its value; raises _KeyMissing."""
    filled: dict[str, Any] = {}
    for key, value in params.items():
        path = f"{where}{key}"
        if isinstance(value, str) and value.startswith("os.environ/"):
            variable = value.removeprefix("os.environ/")
            if not environ.get(variable):
                raise _KeyMissing(variable, path)
            value = environ[variable]
        elif isinstance(value, Mapping):
            value = _filled(value, environ, f"{path}.")
        filled[key] = value
    return filled


def _router_entry(deployment: Deployment, environ: Mapping[str, str], pinned: set[str]) -> dict[str, Any] | None:
    """The parameters of a role's own deployment come with each request; those of a mere fallback stay with it."""
    try:
        params = _filled(deployment.litellm_params, environ)
    except _KeyMissing:
        return None
    params.pop("drop_params", None)  # dropping is ours, on record
    if deployment.model_name in pinned:
        params = {name: value for name, value in params.items() if is_route(name)}
    return {"model_name": deployment.model_name, "litellm_params": params, "model_info": dict(deployment.model_info)}
