"""Records in which a part of a fact is not true."""

FUSED = [["stream1", "kernel", "cos sin"]]
EARLY = [["default_stream", "wait_stream", "default_stream stream1"], ["stream1", "kernel", "cos"]]
EARLY += [["stream2", "kernel", "tanh"]]
DEFAULT = [["default_stream", "kernel", "sum"], ["stream1", "kernel", ""]]

WRONG = {
    "stream_code.no-fusion-across-streams": {
        "each in a block of its own stream": {"steps": [FUSED, FUSED, FUSED]},
        "fuses no operators of different streams": {"steps": [FUSED, FUSED, FUSED]},
    },
    "stream_code.fusion-on-one-stream": {"are one kernel": {"steps": [EARLY, FUSED]}},
    "stream_code.events-stop-fusion": {
        "across the record": {"steps": [FUSED, FUSED]},
        "the wait of an event": {"steps": [FUSED, FUSED]},
    },
    "stream_code.streams-take-more-kernels": {"more kernels": {"steps": [FUSED]}},
    "stream_code.launched-after-the-wait": {
        "is launched after its stream's wait_event": {"steps": [EARLY, EARLY]}
    },
    "stream_code.wait-stream-after-the-kernels": {
        "after the kernels of the stream that it waits for": {"steps": [EARLY, EARLY]}
    },
    "stream_code.softmax-stays-on-its-stream": {"on that stream alone": {"steps": [DEFAULT]}},
}
HOLDS = {}
