"""A desk that says which room a request belongs to: look_up -> ask."""

from typing import TypedDict

from langgraph.graph import START, StateGraph

ROOMS = {"invoice": "B12", "laptop": "C03", "visa": "A07", "badge": "A01"}


class State(TypedDict, total=False):
    request: str
    notes: str
    answer: str


def look_up(state: State) -> State:
    return {"notes": "; ".join(f"{topic}: {room}" for topic, room in ROOMS.items())}


def build(model):
    async def ask(state: State) -> State:
        reply = await model.ainvoke(f"{state['notes']}\nWhich room is right for: {state['request']}")
        return {"answer": reply.content}

    graph = StateGraph(State)
    graph.add_node("look_up", look_up)
    graph.add_node("ask", ask)
    graph.add_edge(START, "look_up")
    graph.add_edge("look_up", "ask")
    return graph
