"""A network with its calibration as one torch module."""

from __future__ import annotations

import copy
import io
import json
import shutil
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from small_network import Network, Trained
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import kcal
from kcal import CalibratedClassifier, InvalidInputError, KCalBlend

NAMES = ["ant", "bee", "cat", "dog"]


@pytest.fixture(scope="module")
def model(trained: Trained) -> CalibratedClassifier:
    return CalibratedClassifier(trained.network).fit(trained.calibration, classes=NAMES)


def by_hand(trained: Trained, calibrator: Any, points: torch.Tensor) -> np.ndarray:
    """Return the probabilities of a calibrator for embeddings and logits computed layer by layer."""
    network = copy.deepcopy(trained.network).eval()
    with torch.no_grad():
        embeddings = network.body(points)
        return calibrator.predict_proba(embeddings.numpy(), logits=network.fc(embeddings).numpy())


def test_the_probabilities_are_those_of_the_calibrator(model: CalibratedClassifier, trained: Trained) -> None:
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


def test_loaders_batches_outputs_and_folders_give_the_same(
    model: CalibratedClassifier, trained: Trained, tmp_path: Path
) -> None:
    expected = model.predict_proba(trained.points)
    loader = DataLoader(TensorDataset(trained.points, trained.labels), batch_size=25)
    folder = tmp_path / "outputs"
    outputs = kcal.extract(trained.network, loader, to=folder)
    for data in (loader, (trained.points, trained.labels), {"points": trained.points}, outputs, folder, str(folder)):
        np.testing.assert_allclose(model.predict_proba(data), expected, atol=1e-6)
    assert model.predict(loader).tolist() == [NAMES[k] for k in expected.argmax(axis=1)]
    assert isinstance(model.calibrator, KCalBlend)
    np.testing.assert_array_equal(model.evidence(loader), model.calibrator.evidence(outputs.embeddings))
    again = CalibratedClassifier(trained.network).fit(kcal.extract(trained.network, trained.calibration), classes=NAMES)
    np.testing.assert_array_equal(again.predict_proba(trained.points), expected)


@pytest.mark.parametrize("method", ["ts", "isotonic", "kcal-logits", kcal.KCal(projection="identity", smoothing=0.1)])
def test_every_method_can_calibrate(method: Any, trained: Trained) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kcal.HeldOutWarning)
        fitted = CalibratedClassifier(trained.network, method).fit(trained.calibration)
    probs = fitted(trained.points).detach().numpy()
    np.testing.assert_allclose(probs, fitted.predict_proba(trained.points), atol=1e-6)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-5)
    assert fitted.classes_.tolist() == [0, 1, 2, 3]


def test_the_training_loader_serves_a_learned_projection(trained: Trained) -> None:
    unfitted = kcal.KCal(recipe=kcal.FastRecipe(steps=5), dimension=4)
    fitted = CalibratedClassifier(trained.network, unfitted).fit(trained.calibration, train_loader=trained.train)
    assert isinstance(fitted.calibrator, kcal.KCal)
    assert fitted.calibrator.training_curve_ is not None
    assert unfitted is not fitted.calibrator  # what the user passed stays unfitted
    assert not hasattr(unfitted, "classes_")


@pytest.mark.parametrize("method", ["kcal-blend", "ts", kcal.KCal(projection="identity")])
def test_a_training_loader_that_the_method_does_not_learn_from_is_an_error(method: Any, trained: Trained) -> None:
    model = CalibratedClassifier(trained.network, method)
    with pytest.raises(kcal.InvalidInputError, match=r"^train_loader must be left out: method") as raised:
        model.fit(trained.calibration, train_loader=trained.train)
    assert raised.value.parameter == "train_loader"
    assert model.calibrator is None


def test_groups_and_weights_reach_the_calibrator(trained: Trained) -> None:
    groups, weights = np.arange(240) % 6, np.linspace(0.5, 2, 240)
    fitted = CalibratedClassifier(trained.network).fit(trained.calibration, groups=groups, sample_weight=weights)
    outputs = kcal.extract(trained.network, trained.calibration)
    blend = KCalBlend().fit(
        outputs.embeddings, outputs.labels, logits=outputs.logits, groups=groups, sample_weight=weights
    )
    np.testing.assert_allclose(fitted.predict_proba(trained.points), by_hand(trained, blend, trained.points), atol=1e-6)


def test_a_state_dictionary_restores_a_new_classifier(model: CalibratedClassifier, trained: Trained) -> None:
    content = io.BytesIO()
    torch.save(model.state_dict(), content)
    content.seek(0)
    fresh = CalibratedClassifier(Network())
    fresh.load_state_dict(torch.load(content, weights_only=True))
    torch.testing.assert_close(fresh(trained.points), model(trained.points), rtol=0, atol=0)
    np.testing.assert_array_equal(fresh.predict_proba(trained.points), model.predict_proba(trained.points))
    assert fresh.classes_.tolist() == NAMES
    unfitted = CalibratedClassifier(Network())
    unfitted.load_state_dict(CalibratedClassifier(trained.network).state_dict())
    torch.testing.assert_close(unfitted.network(trained.points).shape, (60, 4))


def test_copies_and_half_precision(model: CalibratedClassifier, trained: Trained) -> None:
    probs = model(trained.points)
    torch.testing.assert_close(copy.deepcopy(model)(trained.points), probs, rtol=0, atol=0)
    half = copy.deepcopy(model).to(torch.bfloat16)
    assert next(half.network.parameters()).dtype == torch.bfloat16
    rough = half(trained.points.bfloat16())
    assert rough.dtype == torch.float32
    assert 0 < (rough - probs).abs().max().item() < 0.1
    torch.testing.assert_close(model.to("cpu")(trained.points), probs, rtol=0, atol=0)


def test_the_calibrated_head_compiles_in_one_graph(model: CalibratedClassifier, trained: Trained) -> None:
    outputs = kcal.extract(trained.network, [trained.points])
    rows = torch.from_numpy(outputs.embeddings), torch.from_numpy(outputs.logits)
    compiled = torch.compile(model.calibrated_head, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*rows), model(trained.points), rtol=0, atol=1e-6)


@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")  # of torch's own parts
def test_the_calibrated_head_runs_as_compiled_code(trained: Trained) -> None:
    fitted = CalibratedClassifier(trained.network, "ts").fit(trained.calibration)
    logits = torch.from_numpy(kcal.extract(trained.network, [trained.points]).logits)
    compiled = torch.compile(fitted.calibrated_head, fullgraph=True)  # kept in torch's cache for the next run
    found = compiled(None, logits)
    torch.set_flush_denormal(False)  # code that old torch compiles flushes small numbers to zero from then on
    torch.testing.assert_close(found, fitted(trained.points), rtol=0, atol=1e-6)


def test_a_file_holds_the_calibrator_and_a_reference(
    model: CalibratedClassifier, trained: Trained, tmp_path: Path
) -> None:
    path = model.save(tmp_path / "model.kcal")
    loaded = CalibratedClassifier.load(path, trained.network)
    torch.testing.assert_close(loaded(trained.points), model(trained.points), rtol=0, atol=0)
    assert isinstance(kcal.load(path), KCalBlend)  # the calibrator alone
    content = path.read_bytes()
    weights = trained.network.fc.weight.detach().numpy().tobytes()
    assert weights not in content
    with pytest.raises(InvalidInputError, match=r"network must be the one that .*model\.kcal was fitted with"):
        CalibratedClassifier.load(path, Network())


def test_a_file_without_a_network_is_loaded_too(trained: Trained, tmp_path: Path) -> None:
    outputs = kcal.extract(trained.network, trained.calibration)
    ts = kcal.TemperatureScaling().fit(outputs.logits, outputs.labels)
    path = kcal.save(ts, tmp_path / "ts.kcal")
    with pytest.warns(kcal.NetworkWarning, match="does not say which network it belongs to"):
        loaded = CalibratedClassifier.load(path, trained.network)
    np.testing.assert_allclose(
        loaded(trained.points).detach().numpy(), loaded.predict_proba(trained.points), rtol=0, atol=1e-6
    )


def test_a_damaged_reference_is_refused(model: CalibratedClassifier, trained: Trained, tmp_path: Path) -> None:
    from kcal.embeddings.digests import checksum

    for head in ({"name": 3}, {"name": "fc", "logits_key": None, "call_index": "0", "gives_logits": True}, "fc"):
        reference = {"class": "Network", "checksum": checksum(trained.network), "head": head}
        path = kcal.save(model.calibrator, tmp_path / "model.kcal", network=reference)
        with pytest.raises(kcal.FileFormatError, match="the stored head is damaged"):
            CalibratedClassifier.load(path, trained.network)


def test_a_head_given_as_a_function_is_given_again(trained: Trained, tmp_path: Path) -> None:
    def head(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = trained.network.body(points)
        return features, trained.network.fc(features)

    fitted = CalibratedClassifier(trained.network, head=head).fit(trained.calibration)
    path = fitted.save(tmp_path / "model.kcal")
    loaded = CalibratedClassifier.load(path, trained.network, head=head)
    torch.testing.assert_close(loaded(trained.points), fitted(trained.points), rtol=0, atol=0)


def test_the_mode_of_the_network_plays_no_part_and_stays(model: CalibratedClassifier, trained: Trained) -> None:
    trained.network.train()
    first, second = model(trained.points), model(trained.points)
    assert trained.network.training
    assert trained.network.body[2].training
    torch.testing.assert_close(first, second, rtol=0, atol=0)  # dropout is off
    model.eval()
    assert not trained.network.training
    torch.testing.assert_close(model(trained.points), first, rtol=0, atol=0)


def test_inputs_by_name_and_gradients(model: CalibratedClassifier, trained: Trained) -> None:
    torch.testing.assert_close(model(points=trained.points), model(trained.points), rtol=0, atol=0)
    points = trained.points.clone().requires_grad_()
    model(points)[:, 0].sum().backward()
    assert points.grad is not None
    assert float(points.grad.abs().max()) > 0
    with pytest.raises(InvalidInputError, match="inputs must be arguments of the network, each once"):
        model(trained.points, points=trained.points)


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: CalibratedClassifier("resnet"), "network must be an nn.Module"),
        (lambda t: CalibratedClassifier(t.network, 3), "method must be the name of a method or a calibrator; got 3"),
        (lambda t: CalibratedClassifier(t.network, "magic").fit(t.calibration), "method must be one of 'uncal'"),
        (lambda t: CalibratedClassifier(t.network).fit([t.points]), "loader must yield labels to fit; got inputs only"),
        (lambda t: CalibratedClassifier(t.network).fit([]), "loader must yield at least one batch"),
        (
            lambda t: CalibratedClassifier(t.network).fit(t.calibration, classes=["a"]),
            r"every column of the logits \(4\)",
        ),
        (lambda t: CalibratedClassifier(t.network).fit("nowhere"), "folder must hold outputs.json"),
        (lambda t: CalibratedClassifier(nn.Linear(6, 1)).fit(t.calibration), "of at least two classes"),
        (lambda t: CalibratedClassifier(t.network).fit([(t.points, t.labels + 1)]), "labels must be from 0 to 3"),
        (
            lambda t: CalibratedClassifier(t.network, "ts").fit(t.calibration).evidence(t.points),
            "a method with evidence",
        ),
    ],
)
def test_wrong_input_is_refused(make: Any, message: str, trained: Trained) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make(trained)


def test_before_the_fit_there_is_nothing_to_predict(trained: Trained, tmp_path: Path) -> None:
    unfitted = CalibratedClassifier(trained.network)
    for use in (unfitted, unfitted.predict_proba, unfitted.evidence, lambda _: unfitted.save(tmp_path / "model.kcal")):
        with pytest.raises(NotFittedError, match="call fit with a calibration set first"):
            use(trained.points)
    assert not list(tmp_path.iterdir())


def test_the_reference_is_text(model: CalibratedClassifier, tmp_path: Path) -> None:
    from kcal.persistence import load_with_network

    reference = load_with_network(model.save(tmp_path / "model.kcal"))[1]
    assert reference is not None
    assert json.loads(json.dumps(reference)) == reference
    assert reference["class"].endswith("small_network.Network")
    assert reference["head"] == {"name": "fc", "logits_key": None, "call_index": 0, "gives_logits": True}


def test_calibrator_and_network_are_of_one_file_even_if_it_is_replaced(
    model: CalibratedClassifier, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model.save(tmp_path / "model.kcal")
    other = CalibratedClassifier(Network(), "uncal").fit(trained.calibration).save(tmp_path / "other.kcal")
    plain = Path.open

    def open_and_replace(self: Path, *arguments: Any, **options: Any) -> Any:
        opened = plain(self, *arguments, **options)
        if other.exists():
            other.replace(path)
        return opened

    monkeypatch.setattr(Path, "open", open_and_replace)
    loaded = CalibratedClassifier.load(path, trained.network)
    torch.testing.assert_close(loaded(trained.points), model(trained.points), rtol=0, atol=0)


def test_groups_and_weights_of_given_outputs_are_kept(trained: Trained) -> None:
    outputs = kcal.extract(trained.network, trained.calibration)
    outputs = replace(outputs, groups=3 * outputs.labels + np.arange(240) % 3)  # samples of a group err together
    fitted = CalibratedClassifier(trained.network).fit(outputs)
    expected = kcal.fit_on(KCalBlend(), outputs)
    assert isinstance(fitted.calibrator, KCalBlend)
    assert fitted.calibrator.shares_ == expected.shares_
    assert fitted.calibrator.shares_ != kcal.fit_on(KCalBlend(), replace(outputs, groups=None)).shares_


def test_a_function_must_be_given_again(trained: Trained, tmp_path: Path) -> None:
    def head(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = trained.network.body(points)
        return features[:, ::2], trained.network.fc(features)

    fitted = CalibratedClassifier(trained.network, head=head).fit(trained.calibration)
    path = fitted.save(tmp_path / "model.kcal")
    with pytest.raises(InvalidInputError, match="head must be given again: it is a function"):
        CalibratedClassifier.load(path, trained.network)
    with pytest.raises(InvalidInputError, match="head must be given again"):
        CalibratedClassifier(Network()).load_state_dict(fitted.state_dict())


def test_a_layer_given_as_the_head_is_no_second_submodule(trained: Trained) -> None:
    given = CalibratedClassifier(trained.network, "ts", head=trained.network.fc).fit(trained.calibration)
    found = CalibratedClassifier(Network(), "ts")
    found.load_state_dict(given.state_dict())
    torch.testing.assert_close(found(trained.points), given(trained.points), rtol=0, atol=0)


def test_a_class_without_samples_keeps_its_column(trained: Trained) -> None:
    outputs = kcal.extract(trained.network, trained.calibration)
    rows = np.flatnonzero(outputs.labels != 1)
    some = kcal.ClassifierOutputs(outputs.embeddings[rows], outputs.logits[rows], outputs.labels[rows])
    with pytest.warns(kcal.MissingClassWarning):
        fitted = CalibratedClassifier(trained.network, kcal.KCal(projection="identity")).fit(some)
    assert fitted(trained.points).shape == (60, 4)
    assert fitted.classes_.tolist() == [0, 1, 2, 3]


def test_outputs_of_another_network_are_refused(trained: Trained, tmp_path: Path) -> None:
    torch.manual_seed(99)
    other = Network()
    kcal.extract(other, trained.calibration, to=tmp_path / "other")
    for outputs in (kcal.extract(other, trained.calibration), tmp_path / "other"):
        with pytest.raises(InvalidInputError, match="loader must be outputs of this network"):
            CalibratedClassifier(trained.network, "ts").fit(outputs)
    own = kcal.extract(trained.network, trained.calibration, autocast=torch.bfloat16)
    CalibratedClassifier(trained.network, "ts").fit(own)
    narrow = kcal.ClassifierOutputs(own.embeddings[:, :-1], own.logits, own.labels)
    with pytest.raises(InvalidInputError, match="loader must be outputs of this network"):
        CalibratedClassifier(trained.network, "ts").fit(narrow)


def test_a_batch_of_a_loader_is_a_batch(model: CalibratedClassifier, trained: Trained) -> None:
    loader = DataLoader(TensorDataset(trained.points, trained.labels), batch_size=60)
    batch = next(iter(loader))
    assert isinstance(batch, list)
    np.testing.assert_array_equal(model.predict_proba(batch), model.predict_proba(loader))
    shuffled = DataLoader(TensorDataset(trained.points, trained.labels), batch_size=60, shuffle=True)
    with pytest.warns(kcal.LoaderWarning, match="shuffles"):
        model.predict_proba(shuffled)


def test_the_order_of_training_and_calibration_plays_no_part(trained: Trained) -> None:
    shuffled = DataLoader(trained.calibration.dataset, batch_size=50, shuffle=True)
    fitted = CalibratedClassifier(trained.network, "ts").fit(shuffled)  # no warning
    np.testing.assert_allclose(fitted(trained.points).detach().sum(dim=1), 1, atol=1e-5)
    for name, values in {"groups": np.arange(240) % 5, "sample_weight": np.ones(240)}.items():
        with pytest.raises(InvalidInputError, match=f"{name} must be in the order of the loader's batches"):
            CalibratedClassifier(trained.network, "ts").fit(shuffled, **{name: values})


def test_labels_of_given_outputs_are_checked(trained: Trained) -> None:
    outputs = kcal.extract(trained.network, trained.calibration)
    for label in (-1, 9):
        wrong = replace(outputs, labels=np.where(outputs.labels == 2, label, outputs.labels))
        with pytest.raises(InvalidInputError, match=f"labels must be from 0 to 3.*got {label} at row"):
            CalibratedClassifier(trained.network).fit(wrong, classes=NAMES)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_modes_of_the_caller_play_no_part(mode: Any, trained: Trained) -> None:
    outputs = kcal.extract(trained.network, trained.calibration)
    plain = CalibratedClassifier(trained.network).fit(outputs)
    with mode():
        fitted = CalibratedClassifier(trained.network).fit(outputs)
    queries = kcal.extract(trained.network, [trained.points])
    expected = plain.predict_proba(queries)
    np.testing.assert_array_equal(fitted.predict_proba(queries), expected)
    with mode():
        np.testing.assert_array_equal(fitted.predict_proba(queries), expected)
        probs = fitted(trained.points)
    assert probs.dtype == torch.float32
    np.testing.assert_array_equal(fitted.predict_proba(queries), expected)  # nothing of the mode is left
    fitted(trained.points.clone().requires_grad_()).sum().backward()
    trained.network.zero_grad()


def test_predictions_ignore_labels(model: CalibratedClassifier, trained: Trained) -> None:
    expected = model.predict_proba(trained.points)
    np.testing.assert_array_equal(model.predict_proba([(trained.points, -torch.ones(60))]), expected)
    np.testing.assert_array_equal(model.predict_proba([(trained.points, ["?"] * 60)]), expected)


def test_weights_that_changed_since_the_fit_are_told_when_saving(trained: Trained, tmp_path: Path) -> None:
    fitted = CalibratedClassifier(copy.deepcopy(trained.network), "ts").fit(trained.calibration)
    fitted.save(tmp_path / "model.kcal")
    with torch.no_grad():
        fitted.network.fc.weight.mul_(2)
    with pytest.warns(kcal.NetworkWarning, match="have changed since the fit"):
        fitted.save(tmp_path / "model.kcal")


def test_a_second_input_is_not_taken_for_labels(model: CalibratedClassifier, trained: Trained) -> None:
    with pytest.raises(InvalidInputError, match="got a second part with fractions in batch 0"):
        model.predict_proba((trained.points, torch.rand(60, 1)))
    assert model.predict_proba((trained.points, torch.full((60,), -1))).shape == (60, 4)


def test_warnings_of_the_calibrator_point_at_the_caller(trained: Trained) -> None:
    outputs = kcal.extract(trained.network, trained.calibration)
    calibrator = kcal.KCal(projection="identity").fit(outputs.embeddings, outputs.labels)
    with pytest.warns(kcal.LeakageWarning) as caught:
        calibrator.predict_proba(outputs.embeddings)
    assert {warning.filename for warning in caught} == {__file__}


def test_a_calibrator_that_learns_and_forgets_changes_the_module(trained: Trained) -> None:
    calibrator = kcal.KCal(projection="identity", bandwidth=0.5)
    model = CalibratedClassifier(trained.network, calibrator).fit(trained.calibration)
    before = model(trained.points).detach()
    outputs = model.outputs(trained.calibration)
    model.calibrator.forget(np.arange(100))
    after = model(trained.points).detach()
    assert float((after - before).abs().max()) > 1e-3
    np.testing.assert_allclose(after.numpy(), model.predict_proba(trained.points), atol=1e-6)
    erased = torch.from_numpy(outputs.embeddings[:100])
    held = [part for part in model.calibrated_head.state_dict().values() if part.shape[1:] == erased.shape[1:]]
    assert held
    assert not any(bool((torch.cdist(erased, part.float()) < 1e-6).any()) for part in held)
