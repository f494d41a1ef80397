"""Messages: whatever is sent arrives equal, in pieces of any size, big buffers without copies."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.ranks import wire


def over_a_socket(message):
    """Send from a blocking end, receive on a channel."""
    ours, theirs = socket.socketpair()
    channel = wire.Channel(ours)
    sender = threading.Thread(target=wire.send, args=(theirs, message))
    sender.start()
    found = []
    while not found:
        found = channel.poll()
    sender.join()
    channel.close()
    theirs.close()
    return found[0]


TENSORS = {
    "float32": torch.randn(300, 200),
    "bfloat16": torch.randn(300, 200).to(torch.bfloat16),
    "bool": torch.rand(300, 300) > 0.5,
    "complex": torch.randn(200, 200, dtype=torch.complex64),
    "conjugated": torch.randn(200, 200, dtype=torch.complex64).conj(),
    "a view": torch.randn(400, 400)[:, ::2],
    "transposed": torch.randn(400, 300).t(),
    "small": torch.ones(3),
    "empty": torch.ones(0, 7),
    "a number": torch.tensor(4.0),
    "with gradients": torch.randn(300, 200, requires_grad=True),
    "a parameter": torch.nn.Parameter(torch.randn(300, 200)),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_arrive_equal(kind):
    x = TENSORS[kind]
    y = wire.unpack(over_a_socket(wire.pack(x)))
    assert type(y) is type(x) and y.dtype == x.dtype and y.shape == x.shape
    assert torch.equal(x.detach(), y.detach()) and y.requires_grad == x.requires_grad
    if y.numel():
        y.data.fill_(1)  # it owns memory that can be written
        assert not torch.equal(x.detach(), y.detach()) or bool((x.detach() == 1).all())


def test_a_big_tensor_is_sent_from_its_own_memory():
    x = torch.zeros(1 << 20)
    body, (buffer,) = wire.pack({"x": x})
    x[0] = 7.0
    assert np.frombuffer(buffer, np.float32)[0] == 7.0 and len(body) < 1000


def test_one_object_in_two_places_stays_one():
    x = torch.randn(300, 300)
    y, z = wire.unpack(wire.pack((x, x)))
    assert y is z


def test_attributes_of_a_tensor_and_modules_travel():
    x = torch.randn(300, 300)
    x.tag = "mine"
    assert wire.unpack(over_a_socket(wire.pack(x))).tag == "mine"
    layer = torch.nn.Linear(300, 300)
    again = wire.unpack(over_a_socket(wire.pack(layer)))
    assert torch.equal(layer.weight, again.weight) and again.weight.requires_grad


def test_functions_with_closures_over_big_things():
    w, text = torch.randn(300, 300), b"x" * (1 << 20)
    f = wire.unpack(over_a_socket(wire.pack(lambda: (w.sum().item(), len(text)))))
    assert f() == (w.sum().item(), 1 << 20)


def test_a_function_that_names_torch_ops_travels():
    f = wire.loads(wire.dumps(lambda x: torch.ops.aten.add(x, 1)))
    assert f(torch.ones(1)).item() == 2.0


ops = torch.ops.aten
OPERATORS = {
    "a namespace": torch.ops._c10d_functional,
    "a packet": torch.ops.aten.add,
    "an overload": torch.ops.aten.add.Tensor,
    "the default overload": torch.ops.aten.sin.default,
}


@pytest.mark.parametrize("kind", OPERATORS)
def test_an_operator_travels_by_its_name(kind):
    assert wire.loads(wire.dumps(OPERATORS[kind])) is OPERATORS[kind]


def test_a_function_that_names_a_namespace_of_operators_travels():
    f = wire.loads(wire.dumps(lambda x: ops.add(x, 1)))
    assert f(torch.ones(1)).item() == 2.0


plain = st.recursive(
    st.none() | st.integers() | st.text(max_size=20) | st.binary(max_size=200),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=50, deadline=None)
@given(st.lists(plain, min_size=1, max_size=5), st.lists(st.integers(0, 200_000), max_size=3))
def test_many_messages_in_one_stream(messages, sizes):
    arrays = [np.arange(size, dtype=np.uint8) for size in sizes]
    ours, theirs = socket.socketpair()
    channel, found = wire.Channel(theirs), []

    def send():
        for message in messages:
            wire.send(ours, (message, arrays))
        ours.close()

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(EOFError):
        while True:
            found += channel.poll()
    sender.join()
    channel.close()
    assert [m for m, _ in found] == messages
    assert all(np.array_equal(a, b) for _, got in found for a, b in zip(got, arrays, strict=True))


def test_receive_says_when_the_other_side_is_gone():
    ours, theirs = socket.socketpair()
    theirs.sendall(b"".join(wire.frame("cut"))[:-2])
    theirs.close()
    with pytest.raises(EOFError):
        wire.Inbox(ours).receive()
    ours.close()


def test_a_module_that_travelled_can_still_be_imported_by_its_name(tmp_path, monkeypatch):
    # its functions came by value, and what they do not use did not come with them
    (tmp_path / "readers_own.py").write_text(
        "factor = 3\nunused = 5\n\n\ndef thrice(x):\n    return x * factor\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    code = """
        import sys
        import cloudpickle
        import readers_own
        cloudpickle.register_pickle_by_value(readers_own)
        from labkit.ranks import transfer, wire
        sent = wire.dumps(readers_own.thrice)
        del sys.modules["readers_own"]
        thrice = transfer.Unpickled(sent).use()
        import readers_own as stand_in
        from readers_own import unused
        print(thrice(2), unused, stand_in.factor, stand_in.thrice(1), hasattr(stand_in, "other"))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.stdout.split() == ["6", "5", "3", "3", "False"], done.stderr
