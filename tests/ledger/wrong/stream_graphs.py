"""Records in which a part of a fact is not true."""

FAILED = {"error": "it does not compile", "graphs": 0, "dynamo": [], "forward": [], "backward": []}
FAILED |= {"ran": {}, "meta": []}
IT, AGAIN = {"it": FAILED}, {"again": FAILED}
CONSTANT = {"graphs": 2, "looked_up": [[11], [11]], "by": ["get_user_obj_by_index"], "objects": 1}
SWITCHES = {**FAILED, "error": "", "dynamo": ["set_current_stream", "sin", "cos", "tan", "exp"]}

WRONG = {
    "stream_graphs.one-graph": {
        "events and wait_stream": IT,
        "synchronize": AGAIN,
        "into one graph": {"it": {**FAILED, "error": "", "graphs": 2}},
    },
    "stream_graphs.other-streams-same-graph": {
        "runs the graph that it has": {"it": CONSTANT},
        "get_external_object_by_index": {"it": CONSTANT},
        "looks the new ones up": {"it": CONSTANT},
    },
    "stream_graphs.event-operators": {"record_event": IT, "wait_event": IT},
    "stream_graphs.wait-stream-operator": {"wait_stream": IT},
    "stream_graphs.stream-in-meta": {"the innermost stream context": IT, "outside of all": IT},
    "stream_graphs.context-leaves-no-node": {"leaves no node": {"it": SWITCHES}},
    "stream_graphs.work-depends-on-its-wait": {"depends on the wait_event": IT},
    "stream_graphs.each-waiter-depends-on-its-own-wait": {"depends on its own stream's wait_event": AGAIN},
    "stream_graphs.backward-on-the-forward-stream": {"on the stream of that operator": IT},
    "stream_graphs.sum-waits-for-the-other-gradient": {
        "waits for an event recorded after the other gradient": IT
    },
    "stream_graphs.shared-sum-compiles": {"compiles": AGAIN},
    "stream_graphs.sum-on-its-first-user": {"on the stream of the first operator that uses it": AGAIN},
    "stream_graphs.second-user-waits-for-the-sum": {"waits for an event recorded after the sum": AGAIN},
    "stream_graphs.record-after-a-change-is-an-error": {
        "is a compile error": {"it": {**FAILED, "error": ""}},
        "the change alone compiles": AGAIN,
    },
    "stream_graphs.written-after-the-record": {
        "compiles": IT,
        "after the event": IT,
    },
    "stream_graphs.synchronize-stays": {"after the work before it and before the work after it": IT},
    "stream_graphs.freed-after-the-other-stream": {
        "its own stream waits for an event of the other": IT,
        "the host does not": IT,
    },
    "stream_graphs.forward-guards-no-memory": {"no event": IT},
}
HOLDS = {}
