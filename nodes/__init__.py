"""The five nodes, and three that ask a person; one file each: plain async functions `(state, *, run) -> their own
update`."""

from bco_graph.nodes.afford import afford
from bco_graph.nodes.approve import approve
from bco_graph.nodes.evaluate import evaluate
from bco_graph.nodes.grade import grade
from bco_graph.nodes.predict import predict
from bco_graph.nodes.propose import propose
from bco_graph.nodes.review import review
from bco_graph.nodes.update import update

__all__ = ["afford", "approve", "evaluate", "grade", "predict", "propose", "review", "update"]
