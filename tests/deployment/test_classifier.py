"""A network with its calibration as one torch module."""

from __future__ import annotations

import copy
import io
import pickle
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from small_network import N_CLASSES, Network, Trained
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import kcal
from kcal import CalibratedClassifier, InvalidInputError, KCal, KCalBlend, NetworkWarning
from kcal.persistence import load_with_network

NAMES = ["ant", "bee", "cat", "dog"]


@pytest.fixture(scope="module")
def model(trained: Trained) -> CalibratedClassifier:
    return CalibratedClassifier(trained.network).fit(trained.calibration, classes=NAMES)


@pytest.fixture(scope="module")
def outputs(trained: Trained) -> kcal.ClassifierOutputs:
    return kcal.extract(trained.network, trained.calibration)


def by_hand(trained: Trained, calibrator: Any, points: torch.Tensor) -> np.ndarray:
    """Return the probabilities of a calibrator for embeddings and logits computed layer by layer."""
    network = copy.deepcopy(trained.network).eval()
    with torch.no_grad():
        embeddings = network.body(points)
        return calibrator.predict_proba(embeddings.numpy(), logits=network.fc(embeddings).numpy())


def assert_equal(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_probabilities_are_those_of_the_calibrator(model: CalibratedClassifier, trained: Trained) -> None:
    network = copy.deepcopy(trained.network).eval()
    points, labels = next(iter(DataLoader(trained.calibration.dataset, batch_size=1000)))
    with torch.no_grad():
        embeddings = network.body(points)
        logits = network.fc(embeddings)
    blend = KCalBlend().fit(embeddings, np.array(NAMES)[labels], logits=logits, classes=NAMES)
    expected = by_hand(trained, blend, trained.points)
    np.testing.assert_allclose(model(trained.points).detach().numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(model.predict_proba(trained.points), expected, atol=1e-6)
    assert model.classes_.tolist() == NAMES


@pytest.mark.parametrize("method", ["ts", "isotonic", "kcal-logits", "kcal-blend", KCal(projection="identity")])
def test_module_equals_predict_proba(method: Any, trained: Trained) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kcal.KcalWarning)
        fitted = CalibratedClassifier(trained.network, method).fit(trained.calibration)
    probs = fitted(trained.points).detach()
    np.testing.assert_allclose(probs.numpy(), fitted.predict_proba(trained.points), atol=1e-6)
    np.testing.assert_allclose(probs.sum(dim=1), 1, atol=1e-5)
    assert fitted.classes_.tolist() == [0, 1, 2, 3]
    if fitted.calibrator.tags.has_evidence:
        found = fitted.with_evidence(trained.points)
        assert_equal(found[0].detach(), probs)
        np.testing.assert_allclose(found[1].detach().numpy(), fitted.evidence(trained.points), atol=1e-6)


def test_data_of_every_kind_give_the_same(model: CalibratedClassifier, trained: Trained, tmp_path: Path) -> None:
    expected = model.predict_proba(trained.points)
    loader = DataLoader(TensorDataset(trained.points, trained.labels), batch_size=25)
    folder = tmp_path / "outputs"
    extracted = kcal.extract(trained.network, loader, to=folder)
    points, labels = trained.points.numpy(), trained.labels.numpy()
    halves = ((trained.points[:25], trained.labels[:25]), [trained.points[25:], trained.labels[25:]])
    by_name = ({"points": trained.points[:25]}, {"points": trained.points[25:]})
    batches: list[Any] = [loader, list(loader), (trained.points, trained.labels), {"points": trained.points}]
    batches += [extracted, folder, str(folder), halves, by_name, iter(halves)]
    batches += [points, [points, labels], (points, labels), (points, labels.tolist())]
    batches += [[(trained.points, -torch.ones(60))], [(trained.points, ["?"] * 60)]]  # labels play no part
    for data in batches:
        np.testing.assert_allclose(model.predict_proba(data), expected, atol=1e-6)
    assert model.predict(loader).tolist() == [NAMES[k] for k in expected.argmax(axis=1)]
    np.testing.assert_array_equal(model.evidence(loader), model.calibrator.evidence(extracted.embeddings))
    for data in (kcal.extract(trained.network, trained.calibration), tuple(trained.calibration)):
        again = CalibratedClassifier(trained.network).fit(data, classes=NAMES)
        np.testing.assert_array_equal(again.predict_proba(trained.points), expected)


def test_training_loader_serves_a_learned_projection(trained: Trained) -> None:
    unfitted = KCal(recipe=kcal.FastRecipe(steps=5), dimension=4)
    fitted = CalibratedClassifier(trained.network, unfitted).fit(trained.calibration, train_loader=trained.train)
    assert fitted.calibrator.training_curve_ is not None
    assert not hasattr(unfitted, "classes_")  # what the user passed stays unfitted
    for method in ("kcal-blend", "ts", KCal(projection="identity")):
        other = CalibratedClassifier(trained.network, method)
        with pytest.raises(InvalidInputError, match=r"^train_loader"):
            other.fit(trained.calibration, train_loader=trained.train)
        assert other.calibrator is None


def test_groups_and_weights_reach_the_calibrator(trained: Trained, outputs: kcal.ClassifierOutputs) -> None:
    groups, weights = 3 * outputs.labels + np.arange(240) % 3, np.linspace(0.5, 2, 240)
    blend = KCalBlend().fit(
        outputs.embeddings, outputs.labels, logits=outputs.logits, groups=groups, sample_weight=weights
    )
    expected = by_hand(trained, blend, trained.points)
    fitted = CalibratedClassifier(trained.network).fit(trained.calibration, groups=groups, sample_weight=weights)
    given = CalibratedClassifier(trained.network).fit(replace(outputs, groups=groups, weights=weights))
    for one in (fitted, given):
        np.testing.assert_allclose(one.predict_proba(trained.points), expected, atol=1e-6)
        assert one.calibrator.shares_ == blend.shares_
    without = CalibratedClassifier(trained.network).fit(replace(outputs, weights=weights))
    assert without.calibrator.shares_ != blend.shares_


@pytest.mark.parametrize("method", ["kcal-blend", KCal(projection="identity"), "ts"])
def test_state_dictionary_restores_a_new_classifier(method: Any, trained: Trained) -> None:
    model = CalibratedClassifier(trained.network, method).fit(trained.calibration, classes=NAMES)
    content = io.BytesIO()
    torch.save(nn.ModuleDict({"inner": model}).state_dict(), content)
    content.seek(0)
    fresh = CalibratedClassifier(Network())
    nn.ModuleDict({"inner": fresh}).load_state_dict(torch.load(content, weights_only=True))
    assert_equal(fresh(trained.points), model(trained.points))
    np.testing.assert_array_equal(fresh.predict_proba(trained.points), model.predict_proba(trained.points))
    assert fresh.classes_.tolist() == NAMES
    fresh.load_state_dict(CalibratedClassifier(Network()).state_dict())  # of an unfitted one
    assert fresh.calibrator is None
    with pytest.raises(NotFittedError):
        fresh(trained.points)


def test_state_dictionary_has_the_calibration_set_once(model: CalibratedClassifier) -> None:
    state = model.state_dict()
    tensors = [*state.pop("_extra_state")["tensors"].values(), *state.values()]
    points = model.calibrator.model_.points
    assert sum(part.shape == points.shape and torch.equal(part, points) for part in tensors) == 1


class Wide(nn.Module):
    """The same names as the small network, more features."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 24))
        self.fc = nn.Linear(24, N_CLASSES)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(points))


@pytest.mark.parametrize("strict", [True, False])
def test_state_of_another_network_changes_nothing(strict: bool, model: CalibratedClassifier, trained: Trained) -> None:
    torch.manual_seed(5)
    other = CalibratedClassifier(Wide(), KCal(projection="identity")).fit(trained.calibration)
    before, probs = copy.deepcopy(dict(other.network.state_dict())), other(trained.points)
    with pytest.raises(InvalidInputError, match=r"^state_dict.*fc\.weight"):
        other.load_state_dict(model.state_dict(), strict=strict)
    torch.testing.assert_close(dict(other.network.state_dict()), before, rtol=0, atol=0)
    assert_equal(other(trained.points), probs)


def test_copies_and_half_precision(model: CalibratedClassifier, trained: Trained) -> None:
    probs = model(trained.points)
    assert_equal(copy.deepcopy(model)(trained.points), probs)
    assert_equal(pickle.loads(pickle.dumps(model))(trained.points), probs)
    half = copy.deepcopy(model).to(torch.bfloat16)
    assert next(half.network.parameters()).dtype == torch.bfloat16
    rough = half(trained.points.bfloat16())
    assert rough.dtype == torch.float32
    assert 0 < (rough - probs).abs().max().item() < 0.1
    assert_equal(model.to("cpu")(trained.points), probs)


def test_calibrated_head_compiles_in_one_graph(model: CalibratedClassifier, trained: Trained) -> None:
    outputs = kcal.extract(trained.network, [trained.points])
    rows = torch.from_numpy(outputs.embeddings), torch.from_numpy(outputs.logits)
    compiled = torch.compile(model.calibrated_head, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*rows), model(trained.points), rtol=0, atol=1e-6)


@torch.no_grad()
def test_a_compiled_classifier_looks_at_no_numbers(model: CalibratedClassifier, trained: Trained) -> None:
    explained = torch._dynamo.explain(model)(trained.points)
    assert not [reason for reason in explained.break_reasons if "item()" in reason.reason]
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(compiled(trained.points), model(trained.points), rtol=0, atol=1e-6)


def test_score_is_the_accuracy_on_labelled_data(model: CalibratedClassifier, trained: Trained) -> None:
    codes, weights = trained.labels.numpy(), np.linspace(0.0, 1.0, len(trained.labels))
    right = model.predict_proba(trained.points).argmax(axis=1) == codes
    names = np.array(NAMES)[codes]
    loader = DataLoader(TensorDataset(trained.points, trained.labels), batch_size=25)
    for data, y in ((loader, None), (trained.points, names), (kcal.extract(trained.network, loader), None)):
        assert model.score(data, y) == pytest.approx(right.mean())
        assert model.score(data, y, weights) == pytest.approx(np.average(right, weights=weights))
    with pytest.raises(InvalidInputError, match="labels"):
        model.score([trained.points])
    with pytest.raises(InvalidInputError, match=r"^y"):
        model.score(trained.points, names[:-1])
    numbers = CalibratedClassifier(trained.network, "ts").fit(trained.calibration)
    with pytest.raises(InvalidInputError, match="must be text or numbers"):
        numbers.score(kcal.ClassifierOutputs(logits=np.eye(4), labels=np.array(list("abcd"))))


def test_file_has_the_calibrator_and_names_the_network(
    model: CalibratedClassifier, trained: Trained, tmp_path: Path
) -> None:
    path = model.save(tmp_path / "model.kcal")
    assert_equal(CalibratedClassifier.load(path, trained.network)(trained.points), model(trained.points))
    assert isinstance(kcal.load(path), KCalBlend)  # the calibrator alone
    assert trained.network.fc.weight.detach().numpy().tobytes() not in path.read_bytes()
    reference = load_with_network(path)[1]
    assert reference["class"].endswith("small_network.Network")
    assert reference["head"] == {"name": "fc", "logits_key": None, "call_index": 0, "gives_logits": True}
    with pytest.raises(InvalidInputError, match=r"^network .*model\.kcal"):
        CalibratedClassifier.load(path, Network())
    for head in ({"name": 3}, {**reference["head"], "call_index": "0"}, {**reference["head"], "weight": 1}, "fc"):
        damaged = kcal.save(model.calibrator, tmp_path / "damaged.kcal", network={**reference, "head": head})
        with pytest.raises(kcal.FileFormatError, match="head"):
            CalibratedClassifier.load(damaged, trained.network)


def test_file_without_a_network_warns(trained: Trained, outputs: kcal.ClassifierOutputs, tmp_path: Path) -> None:
    ts = kcal.TemperatureScaling().fit(outputs.logits, outputs.labels)
    path = kcal.save(ts, tmp_path / "ts.kcal")
    with pytest.warns(NetworkWarning):
        loaded = CalibratedClassifier.load(path, trained.network)
    expected = loaded.predict_proba(trained.points)
    np.testing.assert_allclose(loaded(trained.points).detach().numpy(), expected, rtol=0, atol=1e-6)


def test_calibrator_and_network_are_of_one_file_even_if_it_is_replaced(
    model: CalibratedClassifier, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opener = model.save(tmp_path / "model.kcal"), Path.open
    other = CalibratedClassifier(Network(), "uncal").fit(trained.calibration).save(tmp_path / "other.kcal")

    def open_and_replace(self: Path, *arguments: Any, **options: Any) -> Any:
        opened = opener(self, *arguments, **options)
        if other.exists():
            other.replace(path)
        return opened

    monkeypatch.setattr(Path, "open", open_and_replace)
    assert_equal(CalibratedClassifier.load(path, trained.network)(trained.points), model(trained.points))


def test_head_that_is_a_function_is_given_again(trained: Trained, tmp_path: Path) -> None:
    def head(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = trained.network.body(points)
        return features[:, ::2], trained.network.fc(features)

    fitted = CalibratedClassifier(trained.network, head=head).fit(trained.calibration)
    path = fitted.save(tmp_path / "model.kcal")
    assert_equal(CalibratedClassifier.load(path, trained.network, head=head)(trained.points), fitted(trained.points))
    for load in (
        lambda: CalibratedClassifier.load(path, trained.network),
        lambda: CalibratedClassifier(Network()).load_state_dict(fitted.state_dict()),
    ):
        with pytest.raises(InvalidInputError, match=r"^head"):
            load()


def test_head_may_be_a_layer_or_its_name(model: CalibratedClassifier, trained: Trained) -> None:
    given = CalibratedClassifier(trained.network, "ts", head=trained.network.fc).fit(trained.calibration)
    found = CalibratedClassifier(Network(), "ts")
    found.load_state_dict(given.state_dict())  # the layer is no second submodule
    assert_equal(found(trained.points), given(trained.points))
    named = CalibratedClassifier(nn.DataParallel(trained.network), head="module.fc").fit(trained.calibration)
    np.testing.assert_array_equal(named.predict_proba(trained.points), model.predict_proba(trained.points))
    with pytest.raises(InvalidInputError, match=r"^head"):
        CalibratedClassifier(trained.network, head="nowhere")


def test_mode_of_the_network_plays_no_part_and_stays(model: CalibratedClassifier, trained: Trained) -> None:
    trained.network.train()
    first, second = model(trained.points), model(trained.points)
    assert all(module.training for module in trained.network.modules())
    assert_equal(first, second)  # dropout is off
    model.eval()
    assert_equal(model(trained.points), first)
    assert not any(module.training for module in trained.network.modules())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_modes_of_the_caller_play_no_part(mode: Any, trained: Trained, outputs: kcal.ClassifierOutputs) -> None:
    queries = kcal.extract(trained.network, [trained.points])
    expected = CalibratedClassifier(trained.network).fit(outputs).predict_proba(queries)
    with mode():
        fitted = CalibratedClassifier(trained.network).fit(outputs)
        np.testing.assert_array_equal(fitted.predict_proba(queries), expected)
        assert fitted(trained.points).dtype == torch.float32
    np.testing.assert_array_equal(fitted.predict_proba(queries), expected)  # nothing of the mode is left
    points = trained.points.clone().requires_grad_()
    fitted(points)[:, 0].sum().backward()
    assert float(points.grad.abs().max()) > 0
    trained.network.zero_grad()


def test_threads_do_not_disturb_each_other(model: CalibratedClassifier, trained: Trained) -> None:
    model.eval()
    expected = [model(trained.points[[row]]).detach() for row in range(20)]
    wrong: list[int] = []

    def run(rows: range) -> None:
        for _ in range(5):
            wrong.extend(row for row in rows if not torch.equal(model(trained.points[[row]]).detach(), expected[row]))

    threads = [threading.Thread(target=run, args=(range(start, 20, 4),)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Masked(nn.Module):
    """A network of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, points: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(points * mask)
        return logits


def test_positional_and_keyword_inputs_can_be_mixed() -> None:
    torch.manual_seed(0)
    points, mask = torch.randn(60, 4), (torch.rand(60, 4) > 0.3).float()
    batch = {"points": points, "mask": mask, "labels": torch.arange(60) % 3}
    model = CalibratedClassifier(Masked(), "uncal").fit([batch])
    expected = model(points, mask)
    for found in (model(points, mask=mask), model(points=points, mask=mask)):
        assert_equal(found, expected)
    with pytest.raises(InvalidInputError, match=r"^inputs"):
        model(points, points=points)
    with pytest.raises(InvalidInputError, match=r"^inputs"):
        model(points, mask, points, mask=mask)


FITS: list[tuple[str, Any]] = [
    ("network", lambda _: CalibratedClassifier("resnet")),
    ("method", lambda t: CalibratedClassifier(t.network, 3)),
    ("method", lambda t: CalibratedClassifier(t.network, "magic").fit(t.calibration)),
    ("loader", lambda t: CalibratedClassifier(t.network).fit([t.points])),
    ("loader", lambda t: CalibratedClassifier(t.network).fit([])),
    ("classes", lambda t: CalibratedClassifier(t.network).fit(t.calibration, classes=["a"])),
    ("nowhere", lambda t: CalibratedClassifier(t.network).fit("nowhere")),
    ("labels", lambda t: CalibratedClassifier(t.network).fit([(t.points, t.labels + 1)])),
    ("labels", lambda t: CalibratedClassifier(t.network).fit([(t.points, t.labels - 1)], classes=NAMES)),
    ("method", lambda t: CalibratedClassifier(t.network, "ts").fit(t.calibration).evidence(t.points)),
]


BAD_LABELS = [3, "cat", {"a": 1}, [[0, 1], [2]], [[0], [1, 2]] * 30, [0.5] * 60, [None] * 60, [0, 1], np.eye(60)[:, :4]]
FITS += [("y", lambda t, y=y: CalibratedClassifier(t.network).fit(t.points, y)) for y in BAD_LABELS]
FITS += [("y", lambda t, y=y: CalibratedClassifier(t.network).fit(t.points, y, classes=NAMES)) for y in BAD_LABELS]
FITS += [
    ("classes", lambda t, names=names: CalibratedClassifier(t.network).fit(t.calibration, classes=names))
    for names in (3, "abcd", {"a": 0}, [["a"], ["b", "c"]], ["a", "a", "b", "c"], [None] * 4)
]


@pytest.mark.parametrize(("parameter", "make"), FITS)
def test_wrong_input_is_named(parameter: str, make: Any, trained: Trained) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{parameter}"):
        make(trained)


def test_inputs_are_tensors_with_samples(model: CalibratedClassifier, trained: Trained) -> None:
    for run in (model, model.with_evidence):
        for call in (lambda r: r(trained.points.numpy()), lambda r: r(points=trained.points.numpy())):
            with pytest.raises(InvalidInputError, match=r"^inputs must be tensors"):
                call(run)
    for run in (model, model.with_evidence, model.predict_proba):
        with pytest.raises(InvalidInputError, match="at least one sample"):
            run(trained.points[:0])
    with pytest.raises(InvalidInputError, match="second part"):  # a second input is not taken for labels
        model.predict_proba((trained.points, torch.rand(60, 1)))


def test_unfitted_classifier_says_so(trained: Trained, tmp_path: Path) -> None:
    unfitted = CalibratedClassifier(trained.network)
    uses: list[Any] = [unfitted, unfitted.with_evidence, unfitted.predict_proba, unfitted.predict, unfitted.evidence]
    uses += [lambda _: unfitted.save(tmp_path / "model"), lambda p: unfitted.to_onnx(tmp_path / "model", p)]
    uses += [lambda _: unfitted.classes_, lambda p: unfitted.partial_fit(p, [0] * len(p))]
    assert not hasattr(unfitted, "classes_")
    for use in [*uses, unfitted.to_exported]:
        with pytest.raises(NotFittedError, match="call fit with a calibration set first"):
            use(trained.points)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", [KCal(projection="identity"), kcal.KCalLogits(projection="identity")])
def test_class_without_samples_keeps_its_column(
    method: KCal, trained: Trained, outputs: kcal.ClassifierOutputs
) -> None:
    rows = np.flatnonzero(outputs.labels != 1)
    some = kcal.ClassifierOutputs(outputs.embeddings[rows], outputs.logits[rows], outputs.labels[rows])
    with pytest.warns(kcal.MissingClassWarning):
        fitted = CalibratedClassifier(trained.network, method).fit(some)
    assert fitted(trained.points).shape == (60, 4)
    assert fitted.classes_.tolist() == [0, 1, 2, 3]


def test_outputs_of_another_network_are_refused(trained: Trained, tmp_path: Path) -> None:
    torch.manual_seed(99)
    other = Network()
    own = kcal.extract(trained.network, trained.calibration, autocast=torch.bfloat16)
    CalibratedClassifier(trained.network, "ts").fit(own)
    normed = copy.deepcopy(trained.network)
    nn.utils.parametrizations.weight_norm(normed.fc)
    CalibratedClassifier(normed, "ts").fit(kcal.extract(normed, trained.calibration))  # computed weights
    narrow = kcal.ClassifierOutputs(own.embeddings[:, :-1], own.logits, own.labels)
    kcal.extract(other, trained.calibration, to=tmp_path / "other")
    for outputs in (kcal.extract(other, trained.calibration), tmp_path / "other", narrow):
        with pytest.raises(InvalidInputError, match=r"^loader must be outputs of this network"):
            CalibratedClassifier(trained.network, "ts").fit(outputs)


def test_order_matters_where_rows_are_returned_or_paired(model: CalibratedClassifier, trained: Trained) -> None:
    shuffled = DataLoader(TensorDataset(trained.points, trained.labels), batch_size=60, shuffle=True)
    for predict in (model.predict_proba, model.predict, model.evidence):
        with pytest.warns(kcal.LoaderWarning, match="shuffles") as caught:
            predict(shuffled)
        assert len(caught) == 1
    calibration = DataLoader(trained.calibration.dataset, batch_size=50, shuffle=True)
    CalibratedClassifier(trained.network, "ts").fit(calibration)  # no warning
    for name, values in {"groups": np.arange(240) % 5, "sample_weight": np.ones(240)}.items():
        with pytest.raises(InvalidInputError, match=rf"^{name} must be in the order"):
            CalibratedClassifier(trained.network, "refit").fit(calibration, **{name: values})


def test_changed_weights_are_told_when_saving(trained: Trained, tmp_path: Path) -> None:
    fitted = CalibratedClassifier(copy.deepcopy(trained.network), "ts").fit(trained.calibration)
    fitted.save(tmp_path / "model.kcal")
    with torch.no_grad():
        fitted.network.fc.weight.mul_(2)
    with pytest.warns(NetworkWarning, match="changed since the fit"):
        fitted.save(tmp_path / "model.kcal")


@pytest.mark.parametrize("method", [KCal(projection="identity", bandwidth=0.5), "kcal-blend"])
def test_module_follows_a_calibrator_that_forgets(method: Any, trained: Trained) -> None:
    model = CalibratedClassifier(trained.network, method).fit(trained.calibration)
    before = model(trained.points).detach()
    outputs = model.outputs(trained.calibration)
    model.calibrator.forget(np.arange(100))
    after = model(trained.points).detach()
    assert float((after - before).abs().max()) > 1e-3
    np.testing.assert_allclose(after.numpy(), model.predict_proba(trained.points), atol=1e-6)
    erased = [torch.from_numpy(part[:100]) for part in (outputs.embeddings, outputs.logits)]
    torch.testing.assert_close(pickle.loads(pickle.dumps(model))(trained.points), after)
    model.calibrator.forget(np.arange(100, 102))
    secret = model.calibrator.model_.project(torch.from_numpy(outputs.embeddings[100:101])).numpy().tobytes()
    assert secret not in pickle.dumps(model)
    state = model.state_dict()
    held = [part for part in [*state.pop("_extra_state")["tensors"].values(), *state.values()] if part.ndim == 2]
    for part in held:
        for rows in erased:
            assert part.shape[1] != rows.shape[1] or not (torch.cdist(rows, part.float()) < 1e-6).any()


def test_outputs_of_another_width_are_refused(model: CalibratedClassifier, trained: Trained, tmp_path: Path) -> None:
    loaded = CalibratedClassifier.load(model.save(tmp_path / "model.kcal"), trained.network, head="body.0")
    with pytest.warns(NetworkWarning, match=r"body\.0 is not the last"):
        loaded.locate_head(trained.points)
    for call in (loaded, loaded.with_evidence):
        with pytest.raises(InvalidInputError, match=r"embeddings with the 16 columns of the fit; got 6"):
            call(trained.points)
