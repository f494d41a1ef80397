"""Models from PyPI, small and of random weights: recorded and read without a crash, counted as torch itself counts."""

from __future__ import annotations

import warnings

import pytest
import torch
from oddrank.stages import inspect

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh")]

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def llama(transformers):
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=2, vocab_size=64)
    return transformers.LlamaModel(config), {"input_ids": torch.arange(8)[None], "use_cache": False}


def bert(transformers):
    config = transformers.BertConfig(**SMALL, vocab_size=64)
    return transformers.BertModel(config), {"input_ids": torch.arange(8)[None]}


def vit(transformers):
    config = transformers.ViTConfig(**SMALL, image_size=32, patch_size=8)
    return transformers.ViTModel(config), {"pixel_values": torch.ones(1, 3, 32, 32)}


def t5(transformers):
    config = transformers.T5Config(d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, vocab_size=64)
    ids = torch.arange(8)[None]
    return transformers.T5Model(config), {"input_ids": ids, "decoder_input_ids": ids, "use_cache": False}


@pytest.mark.parametrize("make", [llama, bert, vit, t5])
def test_a_model_is_read_whole_and_counted_as_explain_counts(make):
    torch.manual_seed(0)
    model, inputs = make(pytest.importorskip("transformers"))
    model.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.no_grad():
            frames = inspect(torch.compile(model, backend="aot_eager"), **inputs, fresh=True)
            told = torch._dynamo.explain(model)(**inputs)
    assert len(frames.graphs) == told.graph_count
    for one in frames.graphs:
        assert {"bytecode", "dynamo", "guards", "aot_forward", "decompiled"} <= set(one.texts)
        assert all(one.stage(stage).strip() for stage in one.texts)
        operations = [node for node in one.nodes() if node.kind not in ("input", "output")]
        assert operations and all(node.target for node in operations)
