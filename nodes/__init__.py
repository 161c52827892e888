"""The five nodes, one file each: plain async functions `(state, *, run) -> their own update`."""

from bco_graph.nodes.evaluate import evaluate
from bco_graph.nodes.grade import grade
from bco_graph.nodes.predict import predict
from bco_graph.nodes.propose import propose
from bco_graph.nodes.update import update

__all__ = ["evaluate", "grade", "predict", "propose", "update"]
