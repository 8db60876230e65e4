from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Array
from flwr_shuffle.updates import Layout
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from mod_harness import record
from strategy_harness import delta

MODEL = {
    "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scale": np.array(1234.5, dtype=np.float32),
    "steps": np.array([3, 4], dtype=np.int64),
    "count": np.array(7, dtype=np.int64),
    "mask": np.array([True, False]),
    "half": np.array([0.5], dtype=np.float16),
    "empty": np.zeros((0, 4), dtype=np.float32),
}


def test_every_float_has_its_place_and_nothing_else() -> None:
    layout = Layout.of(record(MODEL))
    assert layout.dim == 6 + 1 + 1
    assert layout.flatten(record(MODEL)).tolist() == [0, 1, 2, 3, 4, 5, 1234.5, 0.5]
    assert layout.flatten(record(MODEL)).dtype == torch.float32


@pytest.mark.parametrize(
    "value", [np.zeros(9, dtype=np.int8), np.zeros((2, 2), dtype=np.float64), np.array(1.5)]
)
def test_a_client_may_hold_anything_in_place_of_integers(value: np.ndarray) -> None:
    old = record(MODEL)
    assert not delta(Layout.of(old), record(MODEL | {"steps": value}), old).any()


def test_order_and_precision_of_a_client_do_not_matter() -> None:
    old = record(MODEL)
    new = {name: MODEL[name] for name in reversed(MODEL)}
    new["weight"] = MODEL["weight"].astype(np.float64) + 1
    assert delta(Layout.of(old), record(new), old).tolist() == [1, 1, 1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"steps": np.array([1, 2])},
        {"empty": np.zeros((0,), dtype=np.float32)},
        {"weight": np.zeros(2, dtype=np.complex64)},
        {"weight": np.zeros(2), "name": np.array(["a"])},
    ],
)
def test_models_that_cannot_be_trained(arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(ValueError, match=r"floating-point|real numbers"):
        Layout.of(record(arrays))


@pytest.mark.parametrize(
    "change",
    [
        {"weight": np.zeros((3, 2), dtype=np.float32)},
        {"weight": np.zeros(6, dtype=np.float32)},
        {"scale": np.zeros(1, dtype=np.float32)},
        {"weight": np.zeros((2, 3), dtype=np.int64)},
        {"weight": np.zeros((2, 3), dtype=np.complex64)},
    ],
)
def test_arrays_of_another_model(change: dict[str, np.ndarray]) -> None:
    layout = Layout.of(record(MODEL))
    with pytest.raises(ValueError, match="holds"):
        layout.flatten(record(MODEL | change))


def test_arrays_that_are_trained_must_be_there_and_no_others() -> None:
    layout = Layout.of(record(MODEL), trained=["weight", "half"])
    other = record({"half": np.array([2.5], np.float16), "weight": MODEL["weight"] + 1, "more": np.ones(3)})
    assert delta(layout, other, record(MODEL)).tolist() == [1] * 6 + [2]
    moved = layout.shifted(record(MODEL), torch.ones(7))
    assert list(moved) == list(MODEL)
    changed = [name for name, array in record(MODEL).items() if moved[name].data != array.data]
    assert changed == ["weight", "half"]
    with pytest.raises(ValueError, match="'weight' is missing"):
        layout.flatten({name: array for name, array in record(MODEL).items() if name != "weight"})
    with pytest.raises(ValueError, match="no floating-point array 'steps'"):
        Layout.of(record(MODEL), trained=["weight", "steps"])


VALID = record(MODEL)["weight"].data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        VALID[:40],
        VALID[:-1],
        VALID.replace(b"(2, 3)", b"(9, 9)"),
        VALID.replace(b"<f4", b"|O4"),
        VALID.replace(b"<f4", b"xyz"),
        VALID.replace(b"False", b"open("),
    ],
)
def test_bytes_that_are_no_array(data: bytes) -> None:
    old = record(MODEL)
    layout = Layout.of(old)
    broken = dict(old)
    broken["weight"] = Array("float32", (2, 3), "numpy.ndarray", data)
    with pytest.raises(ValueError, match=r".+"):
        layout.flatten(broken)


def test_what_an_array_declares_is_not_believed() -> None:
    old = record(MODEL)
    layout = Layout.of(old)
    liar = dict(old)
    liar["weight"] = Array(
        "float32", (2, 3), "numpy.ndarray", record({"w": np.zeros(999, np.float32)})["w"].data
    )
    with pytest.raises(ValueError, match="holds"):
        layout.flatten(liar)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=">f4").reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        np.arange(12, dtype=np.float64)[::2].reshape(2, 3) / 2,
    ],
)
def test_any_order_of_bytes_and_of_memory(value: np.ndarray) -> None:
    layout = Layout.of(record({"w": np.zeros((2, 3), np.float32)}))
    assert layout.flatten(record({"w": value})).tolist() == [0, 1, 2, 3, 4, 5]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        hnp.arrays(
            dtype=st.sampled_from([np.float32, np.float64, np.int64, np.float16]),
            shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
            elements=st.integers(-1000, 1000),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_shifting_by_the_change_gives_the_new_model(values: list[np.ndarray]) -> None:
    arrays = {str(i): value for i, value in enumerate([*values, np.array(1.0, dtype=np.float32)])}
    new = {
        name: np.asarray(value * 2 + 1 if value.dtype.kind == "f" else value + 5, dtype=value.dtype)
        for name, value in arrays.items()
    }
    layout = Layout.of(record(arrays))
    moved = layout.shifted(record(arrays), delta(layout, record(new), record(arrays)))
    for name, value in arrays.items():
        expected = new[name] if value.dtype.kind == "f" else value
        np.testing.assert_array_equal(moved[name].numpy(), expected)
