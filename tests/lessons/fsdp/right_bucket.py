"""Right answers to `fsdp.bucket` in other words than those of the solution."""

from __future__ import annotations

from lessons.fsdp.wrong_bucket import all_that_agree, together


def _merged(gm, buckets):
    import torch

    graph = gm.graph
    for nodes in buckets:
        with graph.inserting_before(graph.output_node()):
            parts = together(graph, torch.ops._c10d_functional, nodes)
        for node, part in zip(nodes, parts, strict=True):
            for wait in list(node.users):
                wait.replace_all_uses_with(part)
                graph.erase_node(wait)
            graph.erase_node(node)
    left = list(graph.nodes)[:-1]
    while left:
        ready = [node for node in left if not set(node.all_input_nodes) & set(left)]
        for node in ready:
            graph.output_node().prepend(node)
        left = [node for node in left if node not in ready]
    gm.recompile()
    return gm.forward


def scheduled(gm, example_inputs):
    """Runs the graph in thought: starts what can start, and the collectives for which the fewest are missing last."""
    left, buckets = list(gm.graph.nodes), []
    while left:
        ready = [node for node in left if not set(node.all_input_nodes) & set(left)]
        if all("all_reduce" in str(node.target) for node in ready):

            def missing(kind, waiting=left, there=ready):
                alike = [n for n in waiting if "all_reduce" in str(n.target) and all_that_agree(n) == kind]
                return len(set(alike) - set(there))

            kind = min(map(all_that_agree, ready), key=missing)
            ready = [node for node in ready if all_that_agree(node) == kind]
            buckets.append(ready)
        else:
            ready = [node for node in ready if "all_reduce" not in str(node.target)]
        left = [node for node in left if node not in ready]
    return _merged(gm, buckets)


def one_node_for_each_bucket(gm, example_inputs):
    """Merges what needs each other neither way, where a bucket counts as one node."""
    buckets = []

    def before(nodes):
        found, todo = set(), list(nodes)
        while todo:
            for node in todo.pop().all_input_nodes:
                if node not in found:
                    alike = next((bucket for bucket in buckets if node in bucket), [node])
                    found.update(alike)
                    todo += alike
        return found

    for node in gm.graph.nodes:
        if "all_reduce" in str(node.target):
            for bucket in buckets:
                apart = node not in before(bucket) and not before([node]) & set(bucket)
                if apart and all_that_agree(bucket[0]) == all_that_agree(node):
                    bucket.append(node)
                    break
            else:
                buckets.append([node])
    return _merged(gm, buckets)
