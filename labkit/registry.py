"""The topics of the course and the numbers of their lessons. Nothing of a topic is imported here."""

from __future__ import annotations

from labkit import files

__all__ = ["TOPICS", "lesson"]

# one package of `course` each, in the order of the course, and the number of its lesson
TOPICS = {
    **{"start": "00", "groups": "01", "functional": "02", "reading": "03", "cliff": "04", "trap": "05"},
    **{"streams": "06", "compiled_streams": "07", "offload": "07b", "symmetry": "08", "guards": "09"},
    **{"dtensor": "10", "dtensor_compiled": "10b", "mesh": "11", "cold": "12", "ddp": "13"},
    **{"fsdp": "14", "break_it": "15"},
    **{"scale": "16", "since": "17", "repair": "18", "new_torch": "19"},
}


def lesson(topic: str) -> str:
    """The name of a topic's notebook, without its ending.

    Raises:
        ValueError: there is no such topic, or its notebook is not here.

    >>> lesson("cliff")
    '04_graph_break_cliff'
    """
    if topic not in TOPICS:
        raise ValueError(f"unknown topic {topic!r}: there is {', '.join(TOPICS)}")
    number = f"{TOPICS[topic]}_"
    for path in files.lessons():
        if path.stem.startswith(number):
            return path.stem
    raise ValueError(f"the lesson of topic {topic!r} is not here: no notebook begins with {number}")
