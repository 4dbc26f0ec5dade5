"""Files are scored in parts: the numbers are those of the whole file, and nothing is scored twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kcal
from kcal.distributed import Columns, predict
from kcal.distributed.prediction import LOCK, Scorer
from kcal.distributed.tables import InputFile
from kcal.files import locked_folder

N_FEATURES = 5


def write(path: Path, n_rows: int, seed: int, **columns: Any) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(n_rows, N_FEATURES)).astype(np.float32)
    named = {f"e{index}": rows[:, index] for index in range(N_FEATURES)}
    pq.write_table(pa.table(named | columns), path, row_group_size=300)
    return rows


@pytest.fixture(scope="module")
def model() -> kcal.KCal:
    generator = np.random.default_rng(0)
    labels = np.array(["cat", "dog"])[generator.integers(0, 2, 200)]
    embeddings = generator.normal(size=(200, N_FEATURES)).astype(np.float32)
    return kcal.KCal(projection="identity", bandwidth=0.5, progress=False).fit(embeddings, labels)


def options(**more: Any) -> dict[str, Any]:
    return {"engine": "local", "rows_at_once": 1_024, "part_rows": 1_024} | more


def test_predictions_are_those_of_the_whole_file_in_its_order(model, tmp_path):
    rows = write(tmp_path / "new.parquet", 2_500, 1, id=np.arange(2_500))
    done = predict(tmp_path / "new.parquet", model, tmp_path / "out", evidence=True, **options())
    assert (done.n_rows, done.n_parts, done.n_computed) == (2_500, 3, 3)
    scored = pq.read_table(tmp_path / "out")
    assert scored.column_names == ["id", "prediction", "p_cat", "p_dog", "evidence"]
    assert scored.column("id").to_pylist() == list(range(2_500))
    probs = model.predict_proba(rows)
    np.testing.assert_array_equal(np.stack([scored.column("p_cat"), scored.column("p_dog")], axis=1), probs)
    assert scored.column("prediction").to_pylist() == model.predict(rows).tolist()
    np.testing.assert_array_equal(scored.column("evidence"), model.evidence(rows))


def test_of_a_large_row_group_only_pieces_are_held(tmp_path):
    rows = np.random.default_rng(0).normal(size=(5, 800_000))
    pq.write_table(pa.table({f"e{index}": row for index, row in enumerate(rows)}), tmp_path / "a.parquet")
    (part,) = InputFile.read(tmp_path / "a.parquet").parts(10**6, 4_096)
    before, most = pa.total_allocated_bytes(), 0
    for _ in part.blocks([f"e{index}" for index in range(5)], 4_096):
        most = max(most, pa.total_allocated_bytes() - before)
    assert part.stop == 800_000  # 32 MB
    assert most < 16 * 2**20


def test_files_may_be_added_but_not_changed(model, tmp_path):
    write(tmp_path / "a.parquet", 500, 1)
    predict(tmp_path / "*.parquet", model, tmp_path / "out", **options())
    write(tmp_path / "b.parquet", 600, 2)
    assert predict(tmp_path / "*.parquet", model, tmp_path / "out", **options()).n_computed == 1
    write(tmp_path / "a.parquet", 700, 3)
    with pytest.raises(kcal.InvalidInputError, match="as they are now"):
        predict(tmp_path / "*.parquet", model, tmp_path / "out", **options())


def test_a_folder_of_other_predictions_is_refused(model, tmp_path):
    write(tmp_path / "a.parquet", 2_048, 1)
    predict(tmp_path / "a.parquet", model, tmp_path / "out", **options())
    max((tmp_path / "out").glob("*.parquet")).unlink()  # the first part stays, which begins as a larger one would
    other = model.with_prior("uniform")
    for call in ({"model": other}, {"evidence": True}, {"rows_at_once": 512}, {"part_rows": 2_048}):
        with pytest.raises(kcal.InvalidInputError, match="out must be empty or hold predictions of the same model"):
            predict(tmp_path / "a.parquet", out=tmp_path / "out", **options(**{"model": model} | call))


def test_a_file_that_changes_during_the_run_is_an_error(model, tmp_path, monkeypatch):
    write(tmp_path / "a.parquet", 2_000, 1)
    plain = Scorer.write

    def changing(self: Scorer, part: Any, folder: Path) -> Any:
        if part.start:
            write(tmp_path / "a.parquet", 900, 2)  # without the rows of this part
        return plain(self, part, folder)

    monkeypatch.setattr(Scorer, "write", changing)
    with pytest.raises(kcal.KcalError, match=r"a\.parquet was changed during the run"):
        predict(tmp_path / "a.parquet", model, tmp_path / "out", **options())


def test_a_process_that_is_killed_loses_no_row_and_repeats_none(model, tmp_path):
    write(tmp_path / "a.parquet", 30_000, 1, id=np.arange(30_000))
    kcal.save(model, tmp_path / "model.kcal")
    out = tmp_path / "out"
    code = (
        "import os, signal, sys; from kcal.distributed import predict, prediction\n"
        "folder, count = sys.argv[1], int(sys.argv[2]); plain = prediction.Scorer.table\n"
        "def table(self, rows):\n"
        "    global count; count -= 1\n"
        "    return plain(self, rows) if count else os.kill(os.getpid(), signal.SIGKILL)\n"
        "prediction.Scorer.table = table\n"
        "predict(f'{folder}/a.parquet', f'{folder}/model.kcal', f'{folder}/out', engine='local',"
        " rows_at_once=256, part_rows=1_024)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path), "50"], check=False).returncode == -9
    written = {path.name: path.stat().st_mtime_ns for path in out.glob("[!.]*.parquet")}
    assert len(written) == 12  # 49 blocks, 4 per part
    assert list(out.glob(".*.parquet"))
    options = {"engine": "local", "rows_at_once": 256, "part_rows": 1_024}
    done = predict(tmp_path / "a.parquet", model, out, **options)
    assert (done.n_parts, done.n_computed) == (30, 18)
    assert all((out / name).stat().st_mtime_ns == time for name, time in written.items())
    assert pq.read_table(out).column("id").to_pylist() == list(range(30_000))
    assert not list(out.glob(".*.parquet"))
    manifest = json.loads((out / "_manifest.json").read_bytes())
    assert sum(part["rows"] for part in manifest["parts"]) == manifest["rows"] == 30_000


def test_lists_and_columns_of_numbers_are_the_same_embeddings(model, tmp_path):
    rows = write(tmp_path / "wide.parquet", 300, 1)
    pq.write_table(pa.table({"embedding": list(rows)}), tmp_path / "lists.parquet")
    for name in ("wide", "lists"):
        predict(tmp_path / f"{name}.parquet", model, tmp_path / name, **options())
    assert pq.read_table(tmp_path / "wide").equals(pq.read_table(tmp_path / "lists"))


def test_files_without_rows_have_no_predictions(model, tmp_path):
    write(tmp_path / "a.parquet", 0, 1)
    done = predict(tmp_path, model, tmp_path / "none", **options())
    assert str(done) == f"{tmp_path / 'none'}: 0 rows in 0 parts"
    write(tmp_path / "b.parquet", 5, 1)
    assert predict(tmp_path, model, tmp_path / "some", **options()).n_rows == 5


def test_hidden_files_of_others_stay(model, tmp_path):
    write(tmp_path / "a.parquet", 10, 1)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".mine.parquet").write_bytes(b"something else")
    predict(tmp_path / "a.parquet", model, tmp_path / "out", **options())
    assert (tmp_path / "out" / ".mine.parquet").exists()


def test_known_rows_are_warned_of(model, tmp_path):
    generator = np.random.default_rng(0)
    generator.integers(0, 2, 200)
    rows = generator.normal(size=(200, N_FEATURES)).astype(np.float32)
    pq.write_table(pa.table({f"e{index}": rows[:, index] for index in range(N_FEATURES)}), tmp_path / "a.parquet")
    with pytest.warns(kcal.LeakageWarning, match="200 of 200 rows"):
        predict(tmp_path / "a.parquet", model, tmp_path / "out", **options())


def test_columns_are_chosen_by_name(model, tmp_path):
    rows = write(tmp_path / "a.parquet", 200, 1, other=np.zeros(200), key=[f"row {index}" for index in range(200)])
    columns = Columns(tuple(f"e{index}" for index in range(N_FEATURES)), ids="key", id_name="key")
    predict(tmp_path / "a.parquet", model, tmp_path / "out", columns=columns, **options())
    scored = pq.read_table(tmp_path / "out")
    assert scored.column_names[0] == "key"
    np.testing.assert_array_equal(scored.column("p_cat"), model.predict_proba(rows)[:, 0])


def columns(**changes: Any) -> pa.Table:
    """Two rows of features, with some columns changed."""
    return pa.table({f"e{index}": [1.0, 2.0] for index in range(N_FEATURES)} | changes)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (columns(e0=[1.0, float("nan")]), "rows 0 to 2: .*NaN"),
        (columns(e0=["a", "b"]), "column 'e0'"),
        (columns().select(["e0"]), "expecting 5 features"),
        (pa.table({"id": [1]}), "columns of features"),
        (pa.table({"e": [[1.0] * 5, None]}), "lists of one length"),
        (pa.table({"e": [[1.0] * 5, [1.0]]}), "lists of one length"),
        (pa.table({"e": [[1.0] * 5, [1.0, 1.0, 1.0, 1.0, None]]}), "NaN at row 1"),
    ],
)
def test_unusable_rows_are_an_error_that_names_them(model, tmp_path, table, message):
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(kcal.KcalError, match=message):
        predict(tmp_path, model, tmp_path / "out", **options())


def test_unreadable_files_are_named(model, tmp_path):
    write(tmp_path / "a.parquet", 500, 1)
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[10:2_000] = bytes(1_990)  # the footer stays
    (tmp_path / "pages.parquet").write_bytes(content)
    (tmp_path / "text.parquet").write_bytes(b"nothing")
    for name in ("pages", "text"):
        with pytest.raises(kcal.KcalError, match=rf"{name}\.parquet cannot be read as parquet"):
            predict(tmp_path / f"{name}.parquet", model, tmp_path / "out", **options())
    write(tmp_path / "b.parquet", 2, 1, id=["c", "d"])
    write(tmp_path / "c.parquet", 2, 1, id=[1, 2])
    with pytest.raises(kcal.InvalidInputError, match="ids of one type"):
        predict([tmp_path / "b.parquet", tmp_path / "c.parquet"], model, tmp_path / "other", **options())
    with pytest.raises(kcal.InvalidInputError, match="data"):
        predict(tmp_path / "none*.parquet", model, tmp_path / "other", **options())


def test_a_folder_that_another_run_uses_is_named(model, tmp_path):
    write(tmp_path / "a.parquet", 10, 1)
    (tmp_path / "out").mkdir()
    with locked_folder(tmp_path / "out", LOCK), pytest.raises(kcal.InvalidInputError, match="in use by process"):
        predict(tmp_path / "a.parquet", model, tmp_path / "out", **options())
    assert not list((tmp_path / "out").glob("*.parquet"))
    assert predict(tmp_path / "a.parquet", model, tmp_path / "out", **options()).n_rows == 10
