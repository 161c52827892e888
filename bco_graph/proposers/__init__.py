"""Who proposes: a tool loop over a model, a coding-agent CLI, a person, or a recording; all behind one seam.

want                                open
the seam                            protocols.Proposer
what all four must do               contract.py
a submission checked                intake.py
the tool loop                       agent.py, loop.py; its tools: tools.py; how calls are written: replies.py
how an edit is applied              editing.py
a call as LangChain sees it          chat_face.py
a CLI in the workspace              command.py, running.py, step_files.py; what it sees: jail.py, landlock_jail.py
a person                            handoff.py
a recorded run                      replay.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from bco_graph.config import ProposerConfig, nearest
from bco_graph.errors import ConfigError
from bco_graph.protocols import Caller, ModelCalls, Proposer, Role
from bco_graph.state import JSON

ENTRY_POINTS = "bco_graph.proposers"
"""Group of strangers' proposers: a callable with the signature of `make_proposer`."""

KINDS = ("agent", "command", "handoff", "replay")


def make_proposer(
    config: ProposerConfig,
    *,
    calls: ModelCalls,
    capabilities: Callable[[Role], Mapping[str, JSON]],
    gateway_url: str,
    token_for: Callable[[Caller], str],
    gateway_socket: Path | None = None,
    hide: Sequence[Path] = (),
    predictor: bool = False,
) -> Proposer:
    """The proposer of the configured kind; raises ConfigError for an unknown kind or what that kind lacks.

    `capabilities` describes a role's deployment (`{"tools": bool}`), `token_for` gives the gateway's bearer token for a
    caller. They are not called before the first step. `gateway_socket` and `hide` are for a command that is confined:
    where it reaches the gateway, and what it must not see. `predictor` says whether the run has a model for that role.
    """
    if config.kind == "agent":
        from bco_graph.proposers.agent import AgentProposer

        return AgentProposer(config, calls, capabilities=capabilities, predictor=predictor)
    if config.kind == "command":
        from bco_graph.proposers.command import CommandProposer

        return CommandProposer(
            config, gateway_url=gateway_url, token_for=token_for, gateway_socket=gateway_socket, hide=hide
        )
    if config.kind == "handoff":
        from bco_graph.proposers.handoff import HandoffProposer

        return HandoffProposer(config)
    if config.kind == "replay":
        return _replay(config)
    factory = _stranger(config.kind)
    return factory(
        config, calls=calls, capabilities=capabilities, gateway_url=gateway_url, token_for=token_for
    )  # fmt: skip


def describe_proposer(config: ProposerConfig) -> str:
    """Who proposes, and what confines a command; raises ConfigError as `make_proposer` does."""
    if config.kind == "command":
        from bco_graph.proposers.command import CommandProposer

        return CommandProposer(config, gateway_url="", token_for=lambda _: "").describe()
    if config.kind == "replay":
        _replay(config)
        return f"the recording {config.recording}"
    if config.kind == "agent":
        return "the model of roles.proposer"
    if config.kind == "handoff":
        return "whoever calls `bco step` and `bco submit`"
    return f"{_stranger(config.kind).__module__}, installed"


def _replay(config: ProposerConfig) -> Proposer:
    from bco_graph.proposers.replay import ReplayProposer

    if config.recording is None:
        raise ConfigError('proposer.kind is "replay", so proposer.recording must name the folder of a recording')
    return ReplayProposer(Path(config.recording))


def _stranger(kind: str) -> Callable[..., Proposer]:
    found = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if kind not in found:
        known = [*KINDS, *sorted(found)]
        raise ConfigError(
            f"proposer.kind {kind!r} is unknown{nearest(kind, known)}; available: {', '.join(known)}; "
            f"others are installed as entry points of the group {ENTRY_POINTS!r}"
        )
    factory: Callable[..., Proposer] = found[kind].load()
    return factory
