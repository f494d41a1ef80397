"""Places in the reader's code: short, the same on every machine, never a full path."""

from __future__ import annotations

import os
import subprocess
import sys

import torch

from oddrank import places


def test_a_registered_cell_shows_its_label():
    places.register("/scratch/ipykernel_7/11.py", "In [5]")
    assert places.place("/scratch/ipykernel_7/11.py", 3, "block") == "In [5]:3 (block)"
    assert not places.is_library("/scratch/ipykernel_7/11.py")


def test_a_cell_nobody_registered_still_hides_its_file():
    assert places.place("/scratch/ipykernel_99/5.py", 2) == "In [?]:2"
    assert places.place("<ipython-input-4-abc>", 1, "f") == "In [4]:1 (f)"


def test_files_show_their_name_and_installed_packages_their_path_from_the_package():
    assert places.place("/home/ada/work/model.py", 12, "forward") == "model.py:12 (forward)"
    assert places.label(torch.nn.modules.container.__file__) == "torch/nn/modules/container.py"
    assert places.label(places.__file__) == "oddrank/places.py"
    assert places.place("", 3) == ""


def test_installed_code_is_a_library_and_so_is_this_package_wherever_it_stands():
    assert places.is_library(places.__file__)
    assert places.is_library(torch.__file__)
    assert places.is_library(os.__file__)
    assert places.is_library("<frozen importlib._bootstrap>")


def test_what_inductor_wrote_is_no_code_of_the_readers_wherever_its_cache_is():
    name = "cqkhpbmwhjohfjj37ivd5hiaulhplwqz5cn32bxxhzs5ii2ngnsi.py"
    assert places.is_library(f"/mnt/caches/rank-1/qk/{name}") and places.is_library(
        f"/x/torchinductor_ada/qk/{name}"
    )
    assert not places.is_library("/home/ada/common.py") and not places.is_library(f"/home/ada/my_{name}")


def test_a_package_of_another_environment_is_a_library(tmp_path):
    """torch of the system below a virtual environment, or of `pip install --user`."""
    folder = tmp_path / "dist-packages"
    file = folder / "torchlike" / "collectives.py"
    asked = (
        f"from oddrank import places; print(places.is_library({str(file)!r}), places.label({str(file)!r}))"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    said = subprocess.run([sys.executable, "-c", asked], env=env, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["True", "torchlike/collectives.py"]


def test_rewriting_a_message_leaves_no_full_path():
    places.register("/scratch/ipykernel_7/12.py", "In [6]")
    text = f'File "/scratch/ipykernel_7/12.py", line 3; {torch.__file__}:10; at /home/ada/m.py:4 in f'
    said = places.rewrite(text)
    assert said == 'File "In [6]", line 3; torch/__init__.py:10; at m.py:4 in f'
    assert sys.prefix not in said
