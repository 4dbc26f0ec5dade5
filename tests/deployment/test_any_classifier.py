"""Classifiers as users have them: without a head, of one logit, with masked classes, arrays in place of loaders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from small_network import Network, Trained
from torch import nn

import kcal
from calibrator_checks import quick
from kcal import CalibratedClassifier, InvalidInputError, KCal, TemperatureScaling
from kcal.embeddings import extract

NAMES = ["ant", "bee", "cat", "dog"]


class Wrapped(nn.Module):
    """A network whose output is changed by a function."""

    def __init__(self, network: nn.Module, change: Any) -> None:
        super().__init__()
        self.network, self.change = network, change

    def forward(self, points: torch.Tensor) -> Any:
        return self.change(self.network(points))


class Mean(nn.Module):
    """An ensemble: no layer has its output."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(Network() for _ in range(3))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return torch.stack([member(points) for member in self.members]).mean(dim=0)


def calibration_set(trained: Trained) -> tuple[torch.Tensor, torch.Tensor]:
    return trained.calibration.dataset.tensors  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["ts", "sms", "isotonic"])
def test_methods_on_logits_need_no_head(method: str, trained: Trained, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Mean().eval()
    with pytest.raises(InvalidInputError, match=r"^head is needed"):
        CalibratedClassifier(network).fit(trained.calibration)
    model = CalibratedClassifier(network, method).fit(trained.calibration)
    points, labels = calibration_set(trained)
    with torch.no_grad():
        logits, queries = network(points).numpy(), network(trained.points).numpy()
        probs = model(trained.points).numpy()
    expected = kcal.METHODS[method].factory().fit(logits, labels.numpy()).predict_proba(queries)
    np.testing.assert_allclose(probs, expected, atol=1e-5)
    loaded = CalibratedClassifier.load(model.save(tmp_path / "model.kcal"), network)
    np.testing.assert_array_equal(loaded.predict_proba(trained.points), model.predict_proba(trained.points))
    (exported,) = model.to_exported(trained.points).module()(trained.points)
    np.testing.assert_allclose(exported.detach(), probs, atol=1e-5)


@pytest.mark.parametrize("method", ["ts", "kcal-blend", KCal(projection="identity")])
def test_log_softmax_at_the_end_changes_nothing(method: Any, trained: Trained) -> None:
    normalised = Wrapped(trained.network, lambda logits: torch.log_softmax(logits, dim=1))
    plain = CalibratedClassifier(trained.network, method).fit(trained.calibration)
    model = CalibratedClassifier(normalised, method).fit(trained.calibration)
    np.testing.assert_allclose(model.predict_proba(trained.points), plain.predict_proba(trained.points), atol=1e-5)
    again = CalibratedClassifier(normalised, method).fit(model.outputs(trained.calibration))
    np.testing.assert_array_equal(again.predict_proba(trained.points), model.predict_proba(trained.points))


@pytest.mark.parametrize("change", [lambda z: z, lambda z: z[:, 0], lambda z: {"logits": z}])
@pytest.mark.parametrize("method", ["ts", "kcal-blend", KCal(projection="identity")])
def test_one_logit_is_a_binary_classifier(method: Any, change: Any, trained: Trained) -> None:
    torch.manual_seed(0)
    points, labels = calibration_set(trained)
    body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    network = Wrapped(body, change)
    model = CalibratedClassifier(network, method).fit([(points, (labels > 1).float())])
    pair = Wrapped(body, lambda z: torch.cat([torch.zeros_like(z), z], dim=1))
    head = lambda inputs: (body[:2](inputs), pair(inputs))  # noqa: E731
    expected = CalibratedClassifier(pair, method, head=head).fit([(points, (labels > 1).long())])
    assert model.classes_.tolist() == [0, 1]
    np.testing.assert_allclose(model(trained.points).detach(), expected.predict_proba(trained.points), atol=1e-6)
    assert CalibratedClassifier(network, method).fit(model.outputs([(points, labels > 1)])).classes_.tolist() == [0, 1]


def test_one_sigmoid_says_to_leave_it_out() -> None:
    torch.manual_seed(0)
    points, labels = torch.randn(90, 4), torch.arange(90) % 2
    network = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
    with pytest.raises(InvalidInputError, match="return the logits"):
        CalibratedClassifier(network).fit(points, labels)
    method = TemperatureScaling(representation="probabilities")
    with pytest.raises(InvalidInputError, match=r"^network .*Leave out its sigmoid"):
        CalibratedClassifier(network, method).fit(points, labels)
    both = Wrapped(network, lambda probs: torch.cat([1 - probs, probs], dim=1))
    logit = CalibratedClassifier(network[0], "ts").fit(points, labels)
    probs = CalibratedClassifier(both, method).fit(points, labels)(points)
    torch.testing.assert_close(probs, logit(points), atol=1e-5, rtol=0)


@pytest.mark.parametrize("last", [nn.Softmax(dim=1), nn.Sigmoid()], ids=str)
def test_probabilities_of_a_network_name_the_method_that_takes_them(last: nn.Module) -> None:
    torch.manual_seed(0)
    points, labels = torch.randn(90, 4), torch.arange(90) % 2
    network = nn.Sequential(nn.Linear(4, 2 if isinstance(last, nn.Softmax) else 1), last)
    with pytest.warns(kcal.RepresentationWarning, match=r"^The network.*TemperatureScaling\(representation=") as caught:
        model = CalibratedClassifier(network, "ts").fit(points, labels)
    assert len(caught) == 1
    model.predict_proba(points)  # which does not warn again


def test_scikit_learn_classifiers_are_told_the_way() -> None:
    with pytest.raises(InvalidInputError, match=r"nn\.Module.*decision_function.*classes=clf\.classes_"):
        CalibratedClassifier(LogisticRegression())  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"nn\.Module; got") as error:
        CalibratedClassifier([1.0])  # type: ignore[arg-type]
    assert not error.value.remedy


def test_several_labels_per_sample_are_not_supported(trained: Trained) -> None:
    points, labels = calibration_set(trained)
    several = torch.stack([labels > 1, labels % 2 == 0, labels == 3, labels == 0], dim=1).float()
    for method in ("ts", "kcal-blend"):
        with pytest.raises(InvalidInputError, match=r"not supported.*one calibrator per label"):
            CalibratedClassifier(trained.network, method).fit([(points, several)])


@pytest.mark.filterwarnings("ignore::kcal.MissingClassWarning")
@pytest.mark.parametrize("method", ["ts", "sms", "isotonic", "kcal-blend", "refit"])
def test_minus_infinity_is_a_masked_class(method: str, trained: Trained) -> None:
    points, labels = (part[calibration_set(trained)[1] < 3] for part in calibration_set(trained))
    mask = torch.tensor([0.0, 0.0, 0.0, -torch.inf])
    network = Wrapped(trained.network, lambda logits: logits + mask)
    head = lambda inputs: (trained.network.body(inputs), network(inputs))  # noqa: E731
    model = CalibratedClassifier(network, method, head=head).fit(points, labels)
    probs = model(trained.points).detach().numpy()
    np.testing.assert_allclose(probs, model.predict_proba(trained.points), atol=1e-6)
    outputs = extract(trained.network, [(points, labels)])
    new = extract(trained.network, [trained.points])
    masked = kcal.ClassifierOutputs(outputs.embeddings, outputs.logits + mask.numpy(), outputs.labels)
    calibrator = kcal.fit_on(kcal.METHODS[method].factory(), masked)  # arrays with −∞
    by_array = kcal.predict_on(calibrator, kcal.ClassifierOutputs(new.embeddings, new.logits + mask.numpy()))
    np.testing.assert_allclose(by_array, probs, atol=1e-5)
    assert probs[:, 3].max() == 0
    with pytest.raises(InvalidInputError, match="finite"):
        TemperatureScaling().fit(np.full((4, 3), -np.inf), [0, 1, 2, 0])


TAKES_MASKS = [name for name in kcal.METHODS if kcal.METHODS[name].inputs != "embeddings" and name != "kcal-logits"]


@pytest.mark.parametrize("method", TAKES_MASKS)
@pytest.mark.usefixtures("short_solvers")
def test_masks_that_differ_from_row_to_row_exclude_classes(method: str, trained: Trained) -> None:
    """The masks are in the calibration set too; arrays and module agree."""
    outputs, new = extract(trained.network, trained.calibration), extract(trained.network, [trained.points])
    random, masked = np.random.default_rng(0), []
    for logits, labels in ((outputs.logits, outputs.labels), (new.logits, new.logits.argmax(axis=1))):
        masked.append(np.eye(4, dtype=bool)[(labels + random.integers(1, 4, len(labels))) % 4])
        logits[masked[-1]] = -np.inf
    calibrator = kcal.fit_on(quick(method), outputs)
    probs = kcal.predict_on(calibrator, new)
    assert (probs[masked[1]] == 0).all()
    assert (probs[~masked[1]] > 0).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-6)
    rows, logits = torch.from_numpy(new.embeddings), torch.from_numpy(new.logits)
    inputs = (rows if calibrator.inputs == "both" else None, logits)
    np.testing.assert_allclose(calibrator.as_module()(*inputs).detach(), probs, atol=1e-6)


def test_kernel_on_logits_warns_of_masks(trained: Trained) -> None:
    outputs = extract(trained.network, trained.calibration)
    outputs.logits[::2, 3] = -np.inf
    with pytest.warns(kcal.KcalWarning, match="mask classes"):
        kcal.METHODS["kcal-logits"].factory(projection="identity").fit(outputs.logits, outputs.labels)


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, lambda rows: np.asarray(rows, dtype=np.float64)])
def test_arrays_serve_as_a_loader_does(kind: Any, trained: Trained) -> None:
    points, labels = calibration_set(trained)
    expected = CalibratedClassifier(trained.network, "ts").fit(trained.calibration, classes=NAMES)
    for y in (labels.numpy(), labels, labels.tolist(), np.array(NAMES)[labels.numpy()]):
        model = CalibratedClassifier(trained.network, "ts").fit(kind(points), y, classes=NAMES)
        probs = model.predict_proba(kind(trained.points))
        np.testing.assert_allclose(probs, expected.predict_proba(trained.points), atol=1e-5)
    by_name = CalibratedClassifier(trained.network, "ts").fit({"points": kind(points)}, labels, classes=NAMES)
    np.testing.assert_allclose(by_name.predict_proba(kind(trained.points)), probs, atol=1e-5)
    for X, y, name in ((points[:5], labels, "y"), (points, np.array(["eel"] * 240), "y"), ("images", labels, "X")):
        with pytest.raises(InvalidInputError, match=rf"^{name} "):
            CalibratedClassifier(trained.network, "ts").fit(X, y, classes=NAMES)


def test_second_input_is_not_taken_for_labels() -> None:
    class Masked(nn.Linear):
        def forward(self, points: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return super().forward(points if mask is None else points * mask)

    torch.manual_seed(0)
    points, mask = torch.randn(90, 6), (torch.rand(90, 6) < 0.5).float()
    model = CalibratedClassifier(Masked(6, 3), "ts").fit((points, mask), torch.arange(90) % 3)
    with pytest.raises(InvalidInputError, match="second part of shape"):
        model.predict_proba((points, mask))
    by_name = model.predict_proba({"points": points, "mask": mask})
    np.testing.assert_allclose(by_name, model(points, mask).detach(), atol=1e-6)
    np.testing.assert_array_equal(model.predict_proba([((points, mask), None)]), by_name)


def test_what_a_method_does_not_use_is_an_error(trained: Trained) -> None:
    model = CalibratedClassifier(trained.network, "ts")
    with pytest.raises(InvalidInputError, match=r"^groups must be left out: method ts"):
        model.fit(trained.calibration, groups=np.arange(240) // 4)
    assert model.calibrator is None


@pytest.mark.parametrize("method", ["ts", "kcal-blend"])
def test_nan_of_the_network_is_told(method: str, trained: Trained) -> None:
    model = CalibratedClassifier(trained.network, method).fit(trained.calibration)
    points = trained.points.clone()
    points[7, 2] = torch.nan
    for predict in (model, model.predict_proba):
        with pytest.raises(InvalidInputError, match=r"^network must give finite numbers.*row 7"):
            predict(points)


@pytest.mark.parametrize("method", ["kcal-blend", KCal(projection="identity", bandwidth=0.5)])
def test_samples_are_added_and_predictions_explained(method: Any, trained: Trained) -> None:
    points, labels = calibration_set(trained)
    model = CalibratedClassifier(trained.network, method).fit(points[:200], labels[:200], classes=NAMES)
    before = model(trained.points)
    model.partial_fit(points[200:], np.array(NAMES)[labels[200:]])
    assert model.calibrator.support_size_ == 240
    assert not torch.equal(before, model(trained.points))
    explanation = model.explain(trained.points, k=3)
    np.testing.assert_allclose(explanation.probabilities, model.predict_proba(trained.points), atol=1e-5)
    assert explanation.ids.shape == (60, 3)
    scaled = CalibratedClassifier(trained.network, "ts").fit(trained.calibration)
    with pytest.raises(InvalidInputError, match=r"^method .*explanations"):
        scaled.explain(trained.points)
    with pytest.raises(InvalidInputError, match="learns online"):
        scaled.partial_fit(points, labels)


def test_integer_names_of_classes_are_looked_up() -> None:
    random = np.random.default_rng(0)
    columns = random.integers(3, size=90)
    inputs = (4 * np.eye(3)[columns] + random.normal(size=(90, 3))).astype(np.float32)
    by_column = CalibratedClassifier(nn.Identity(), "ts").fit(inputs, columns)
    for names in ([2, 1, 0], [10, 20, 30]):
        model = CalibratedClassifier(nn.Identity(), "ts").fit(inputs, np.array(names)[columns], classes=names)
        assert model.classes_.tolist() == names
        np.testing.assert_array_equal(model.predict_proba(inputs), by_column.predict_proba(inputs))
