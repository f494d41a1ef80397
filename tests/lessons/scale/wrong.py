"""Plausible wrong answers to the exercise on the cost model of lesson 16, each with words of the hint meant for it."""

from __future__ import annotations

import math


def _least(worlds, flops, messages, rate, price):
    return min(worlds, key=lambda p: flops / p / rate + sum(price(p, n) for n in messages))


def no_latency(worlds, flops, messages, alpha, beta, rate):
    return _least(worlds, flops, messages, rate, lambda p, n: 2 * (p - 1) / p * n * beta)


def no_bandwidth(worlds, flops, messages, alpha, beta, rate):
    return _least(worlds, flops, messages, rate, lambda p, n: 2 * (p - 1) * alpha)


def as_many_bytes_everywhere(worlds, flops, messages, alpha, beta, rate):
    return _least(worlds, flops, messages, rate, lambda p, n: 2 * (p - 1) * alpha + 2 * n * beta)


def only_one_way(worlds, flops, messages, alpha, beta, rate):
    return _least(worlds, flops, messages, rate, lambda p, n: (p - 1) * (alpha + n / p * beta))


def the_whole_message_each_step(worlds, flops, messages, alpha, beta, rate):
    return _least(worlds, flops, messages, rate, lambda p, n: 2 * (p - 1) * (alpha + n * beta))


def messages_shrink(worlds, flops, messages, alpha, beta, rate):
    return _least(worlds, flops, messages, rate, lambda p, n: 2 * (p - 1) * (alpha + n / p / p * beta))


def a_tree(worlds, flops, messages, alpha, beta, rate):
    return _least(worlds, flops, messages, rate, lambda p, n: math.ceil(math.log2(p)) * (alpha + n * beta))


def the_more_the_better(worlds, flops, messages, alpha, beta, rate):
    return max(worlds)


def the_least_share(worlds, flops, messages, alpha, beta, rate):
    return min(worlds)


def the_time(worlds, flops, messages, alpha, beta, rate):
    return min(flops / p / rate for p in worlds)


def upside_down(worlds, flops, messages, alpha, beta, rate):
    return max(worlds, key=lambda p: flops / p / rate + 2 * (p - 1) * alpha)


WORLDS = {
    no_latency: "the steps are free in it",
    no_bandwidth: "the bytes decide nothing in it",
    as_many_bytes_everywhere: "the bytes decide nothing in it",
    only_one_way: "its ring goes round twice",
    the_whole_message_each_step: "a step of the ring sends a p-th",
    messages_shrink: "as large on 1,024 ranks as on two",
    a_tree: "that is recursive doubling",
    the_more_the_better: "the largest world wins every time in it",
    the_least_share: "compare whole steps",
    the_time: "returns one of the worlds",
    upside_down: "take the world in which the sum is least",
}


WRONG = {"scale.best_world": WORLDS}
