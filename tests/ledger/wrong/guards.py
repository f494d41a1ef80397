"""Records in which a part of a fact about guards is not true."""

KEPT = [1, 1, 1]


def first(name, **more):
    return {name: {"graphs": KEPT, "same": True} | more}


SECTION = {"graphs": 0, "failed": [], "trees": 0, "of_x": 0, "of_n": 0, "with_code": 0}
SILENT = {**SECTION, "graphs": 1}
TWELVE = [1] * 12

WRONG = {
    "guards.first-compile-specializes": {
        "a size": first("size"),
        "an int": first("int"),
        "float": first("float"),
        "bool argument": first("bool"),
        "a global number": first("global"),
        "result is eager's": {"size": {"graphs": [1, 1, 2], "same": False}},
    },
    "guards.recompiles-are-logged": {
        "A call for which a guard fails compiles a graph more": {
            "size": {**SECTION, "failed": ["tensor 'x' size mismatch at index 0. expected 4, actual 5"]}
        },
        "names the guard": {"int": SILENT},
        "a call for which all guards hold compiles and prints nothing": {"same": SILENT},
    },
    "guards.guards-are-logged": {
        "each graph": {"size": {**SILENT, "of_x": 1, "of_n": 1, "with_code": 1}},
        "the guards": {"size": {**SILENT, "trees": 1, "with_code": 1}},
        "the line of code": {"size": {**SILENT, "trees": 1, "of_x": 1, "of_n": 1}},
    },
    "guards.recompile-counts-its-breaks": {
        "counts its graph break again": {"each": [[1, 2], [1, 2], [1, 4]]},
        "its graphs": {"each": [[1, 2], [1, 2], [2, 2]]},
    },
    "guards.second-size-is-a-symbol": {
        "compiles a second graph in which it is a symbol": {"symbols": [[[False, False]], [[False, False]]]},
        "later sizes of 2 and more compile nothing": {"graphs": [[1, 1, 2, 2, 3, 4, 5]] * 2},
        "on each rank": {"graphs": [[1, 1, 2, 2, 2, 2, 2], [1, 1, 1, 2, 2, 2, 2]]},
    },
    "guards.sizes-zero-and-one": {"1 and 0": {"graphs": [1, 2, 2, 2, 2, 2, 2]}},
    "guards.int-argument": {
        "another value compiles a second graph": {"graphs": [1, 1, 1, 2, 2, 2, 2]},
        "all further values run": {"graphs": [1, 1, 2, 2, 2, 3, 4]},
    },
    "guards.float-argument": {
        "another value compiles a second graph": {"graphs": [1, 1, 1, 2, 2, 2, 2]},
        "all further values run": {"graphs": [1, 1, 2, 3, 4, 5, 6]},
    },
    "guards.int-that-is-no-argument": {
        "a global int": {"global": [1, *[2] * 10]},
        "an int attribute of an nn.Module": {"attribute": [1, *[2] * 10]},
        "up to recompile_limit": {"attribute": [*range(1, 12)]},
    },
    "guards.loop-over-a-size": {
        "a graph for each length": {"graphs": [1, *[2] * 11]},
        "up to recompile_limit": {"graphs": [*range(1, 13)]},
    },
    "guards.runs-in-python-at-the-limit": {
        "runs in Python": {"ran": [1] * 13},
        "without an error": {"error": "FailOnRecompileLimitHit"},
        "one warning": {"warned": []},
        "graphs that exist are still used": {"ran": [1] * 8 + [0] * 5},
    },
    "guards.error-at-the-limit": {
        "fail_on_recompile_limit_hit=True": {"setting": {"error": "", "graphs": [8] * 13}},
        "fullgraph=True": {"fullgraph": {"error": "", "graphs": [8] * 13}},
    },
    "guards.limit-is-of-the-code": {
        "blocks of one class": {"blocks": TWELVE},
        "closures of one def": {"closures": TWELVE},
    },
    "guards.isolate-recompiles": {"a limit of its own": {"blocks": [1] * 8 + [0] * 4}},
    "guards.accumulated-limit": {
        "at most accumulated_recompile_limit graphs": {"ran": [1] * 13},
        "whatever recompile_limit says": {"warned": ["hit config.recompile_limit (4)"]},
    },
    "guards.mark-dynamic": {
        "a symbol in the first graph": {"symbols": [[[False, False]]]},
        "one graph": {"graphs": [1, 1, 2, 2, 2, 2]},
    },
    "guards.mark-dynamic-refuses": {
        "ConstraintViolationError": {"error": ""},
        "names the dimension": {"wrong": "Constraints violated!"},
    },
    "guards.dynamic-sources-dimension": {
        "dimension 0 a symbol in the first graph": {"symbols": [[[False, False]]]},
        "and dimension 1 not": {"symbols": [[[True, True]]]},
    },
    "guards.static-sources": {
        "keeps dimension 0 static": {"symbols": [[[False, False]], [[True, True]]]},
        "each size compiles": {"graphs": [1, 2, 2, 2]},
        "while dimension 1 becomes a symbol": {"symbols": [[[False, False]]] * 4},
    },
    "guards.fail-on-recompile": {
        "would compile again raises a RuntimeError": {"ends": ["ran", "ran"]},
        "names the guard": {"ends": ["ran", "RuntimeError: Detected recompile"]},
        "a call that fits runs": {"ends": ["RuntimeError", "RuntimeError: expected 4, actual 5"]},
    },
    "guards.one-rank-recompiles": {
        "that rank compiles again": {"graphs": [[1, 1, 1], [1, 1, 1]]},
        "the other does not": {"graphs": [[1, 2, 2], [1, 2, 2]]},
    },
}
HOLDS = {}
