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
from kcal.distributed.manifest import LOCK
from kcal.distributed.parts import InputFile, find_files
from kcal.distributed.scoring import Scorer
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


@pytest.mark.parametrize("start", [0, 1_024])
def test_a_part_is_the_same_rows_however_row_groups_and_blocks_lie(tmp_path, start):
    write(tmp_path / "new.parquet", 2_000, 1)
    whole = pq.read_table(tmp_path / "new.parquet")
    part = next(part for part in InputFile.read(tmp_path / "new.parquet").parts(1_000, 512) if part.start == start)
    blocks = list(part.blocks(["e3", "e1"], 512))
    assert [len(block) for block in blocks] == [512, 512 if start == 0 else 464]
    assert pa.concat_tables(blocks).equals(whole.select(["e3", "e1"]).slice(start, len(part)))


def test_of_a_large_row_group_only_pieces_are_held(tmp_path):
    rows = np.random.default_rng(0).normal(size=(5, 800_000))
    pq.write_table(pa.table({f"e{index}": row for index, row in enumerate(rows)}), tmp_path / "a.parquet")
    (part,) = InputFile.read(tmp_path / "a.parquet").parts(10**6, 4_096)
    before, most = pa.total_allocated_bytes(), 0
    for _ in part.blocks([f"e{index}" for index in range(5)], 4_096):
        most = max(most, pa.total_allocated_bytes() - before)
    assert part.stop == 800_000  # 32 MB
    assert most < 16 * 2**20


def test_a_run_that_was_stopped_continues_with_what_is_missing(model, tmp_path, monkeypatch):
    write(tmp_path / "a.parquet", 3_000, 1)
    predict(tmp_path / "a.parquet", model, tmp_path / "whole", **options())
    scored: list[str] = []
    plain = Scorer.write

    def failing(self: Scorer, part: Any, folder: Path) -> Any:
        if len(scored) == 2:
            raise KeyboardInterrupt
        scored.append(part.name)
        return plain(self, part, folder)

    monkeypatch.setattr(Scorer, "write", failing)
    with pytest.raises(KeyboardInterrupt):
        predict(tmp_path / "a.parquet", model, tmp_path / "out", **options())
    assert not json.loads((tmp_path / "out" / "_manifest.json").read_bytes())["complete"]
    (tmp_path / "out" / ".0123456789abcdef.parquet").write_bytes(b"half")  # of a process that was killed
    monkeypatch.setattr(Scorer, "write", plain)
    done = predict(tmp_path / "a.parquet", model, tmp_path / "out", **options())
    assert (done.n_parts, done.n_computed) == (3, 1)
    assert pq.read_table(tmp_path / "out").equals(pq.read_table(tmp_path / "whole"))
    assert not list((tmp_path / "out").glob(".*.parquet"))
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_bytes())
    assert manifest["complete"]
    assert manifest["rows"] == 3_000


def test_files_may_be_added_but_not_changed(model, tmp_path):
    write(tmp_path / "a.parquet", 500, 1)
    predict(tmp_path / "*.parquet", model, tmp_path / "out", **options())
    write(tmp_path / "b.parquet", 600, 2)
    assert predict(tmp_path / "*.parquet", model, tmp_path / "out", **options()).n_computed == 1
    write(tmp_path / "a.parquet", 700, 3)
    with pytest.raises(kcal.InvalidInputError, match="as they are now"):
        predict(tmp_path / "*.parquet", model, tmp_path / "out", **options())


def test_another_model_or_other_settings_are_refused(model, tmp_path):
    write(tmp_path / "a.parquet", 500, 1)
    predict(tmp_path / "a.parquet", model, tmp_path / "out", **options())
    other = model.with_prior("uniform")
    changes: list[dict[str, Any]] = [{"model": other}, {"evidence": True}, {"rows_at_once": 512}, {"part_rows": 2_048}]
    for call in ({"model": model} | change for change in changes):
        with pytest.raises(kcal.InvalidInputError, match="out must be empty or hold predictions with the same"):
            predict(tmp_path / "a.parquet", out=tmp_path / "out", **options(**call))


def test_parts_of_another_size_do_not_pass_for_larger_ones(model, tmp_path):
    write(tmp_path / "a.parquet", 2_048, 1)
    predict(tmp_path / "a.parquet", model, tmp_path / "out", **options())
    max((tmp_path / "out").glob("*.parquet")).unlink()  # the first part stays, which begins as a larger one would
    with pytest.raises(kcal.InvalidInputError, match="with the same part_rows"):
        predict(tmp_path / "a.parquet", model, tmp_path / "out", **options(part_rows=2_048))


def test_parts_without_their_manifest_are_refused(model, tmp_path):
    write(tmp_path / "a.parquet", 500, 1)
    predict(tmp_path / "a.parquet", model, tmp_path / "out", **options())
    (tmp_path / "out" / "_manifest.json").unlink()
    with pytest.raises(kcal.InvalidInputError, match=r"out must hold no parquet files without their _manifest\.json"):
        predict(tmp_path / "a.parquet", model.with_prior("uniform"), tmp_path / "out", **options())


def test_a_folder_that_another_run_uses_is_named(model, tmp_path):
    write(tmp_path / "a.parquet", 10, 1)
    (tmp_path / "out").mkdir()
    with locked_folder(tmp_path / "out", LOCK), pytest.raises(kcal.InvalidInputError, match="in use by another run"):
        predict(tmp_path / "a.parquet", model, tmp_path / "out", **options())


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


def test_a_part_that_was_written_elsewhere_is_missed(model, tmp_path, monkeypatch):
    write(tmp_path / "a.parquet", 10, 1)
    plain = Scorer.write
    monkeypatch.setattr(Scorer, "write", lambda self, part, _: plain(self, part, tmp_path))
    with pytest.raises(kcal.FileFormatError, match="all machines must share the folder"):
        predict(tmp_path / "a.parquet", model, tmp_path / "out", **options())


def test_a_process_that_is_killed_loses_no_row_and_repeats_none(model, tmp_path):
    write(tmp_path / "a.parquet", 30_000, 1, id=np.arange(30_000))
    kcal.save(model, tmp_path / "model.kcal")
    out = tmp_path / "out"
    code = (
        "import os, signal, sys; from kcal.distributed import predict, scoring\n"
        "folder, count = sys.argv[1], int(sys.argv[2]); plain = scoring.Scorer.table\n"
        "def table(self, rows):\n"
        "    global count; count -= 1\n"
        "    return plain(self, rows) if count else os.kill(os.getpid(), signal.SIGKILL)\n"
        "scoring.Scorer.table = table\n"
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


def test_lists_and_columns_of_numbers_are_the_same_embeddings(model, tmp_path):
    rows = write(tmp_path / "wide.parquet", 300, 1)
    pq.write_table(pa.table({"embedding": list(rows)}), tmp_path / "lists.parquet")
    for name in ("wide", "lists"):
        predict(tmp_path / f"{name}.parquet", model, tmp_path / name, **options())
    assert pq.read_table(tmp_path / "wide").equals(pq.read_table(tmp_path / "lists"))


def test_what_is_wrong_with_the_data_is_said_with_the_file(model, tmp_path):
    write(tmp_path / "a.parquet", 500, 1)
    rows = np.full((10, N_FEATURES), np.nan, dtype=np.float32)
    pq.write_table(pa.table({f"e{index}": rows[:, index] for index in range(N_FEATURES)}), tmp_path / "b.parquet")
    with pytest.raises(kcal.KcalError, match=r"b\.parquet, rows 0 to 10: .*NaN"):
        predict(tmp_path, model, tmp_path / "out", **options())
    pq.write_table(pa.table({"e0": [1.0]}), tmp_path / "c.parquet")
    with pytest.raises(kcal.InvalidInputError, match=r"c\.parquet has no column 'e1' and 3 others"):
        predict(tmp_path / "*.parquet", model, tmp_path / "out2", **options())
    (tmp_path / "d.parquet").write_bytes(b"nothing")
    with pytest.raises(kcal.FileFormatError, match=r"d\.parquet cannot be read as parquet"):
        predict(tmp_path / "d.parquet", model, tmp_path / "out3", **options())
    with pytest.raises(kcal.InvalidInputError, match=r"data must be parquet files.*; got '.*none\*\.parquet'"):
        find_files(tmp_path / "none*.parquet")
    with pytest.raises(kcal.InvalidInputError, match="data must be the name of a file"):
        find_files(None)


def test_pages_that_are_damaged_are_said_with_the_file(model, tmp_path):
    write(tmp_path / "a.parquet", 500, 1)
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[10:2_000] = bytes(1_990)  # the footer stays
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(kcal.KcalError, match=r"a\.parquet cannot be read as parquet"):
        predict(tmp_path / "a.parquet", model, tmp_path / "out", **options())


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([[1.0] * 5, None], "must have lists of one length in all rows; got 1 rows without a list"),
        ([[1.0] * 5, [1.0]], "must have lists of one length in all rows; got 1 to 5 numbers"),
        ([[1.0] * 5, [1.0, 1.0, 1.0, 1.0, None]], "X must be finite.*got NaN at row 1"),
    ],
)
def test_lists_have_a_number_at_every_place(model, tmp_path, lists, message):
    pq.write_table(pa.table({"e": pa.array(lists)}), tmp_path / "a.parquet")
    with pytest.raises(kcal.KcalError, match=message):
        predict(tmp_path / "a.parquet", model, tmp_path / "out", **options())


def test_a_table_without_features_is_said_to_have_none(model, tmp_path):
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    with pytest.raises(kcal.InvalidInputError, match="data must have columns of features; got only id"):
        predict(tmp_path / "a.parquet", model, tmp_path / "out", **options())


def test_files_without_rows_have_no_predictions(model, tmp_path):
    write(tmp_path / "a.parquet", 0, 1)
    done = predict(tmp_path, model, tmp_path / "none", **options())
    assert str(done) == f"{tmp_path / 'none'}: 0 rows in 0 parts"
    write(tmp_path / "b.parquet", 5, 1)
    assert predict(tmp_path, model, tmp_path / "some", **options()).n_rows == 5


def test_ids_have_one_type_in_all_files(model, tmp_path):
    write(tmp_path / "a.parquet", 2, 1, id=[1, 2])
    write(tmp_path / "b.parquet", 2, 1, id=["c", "d"])
    with pytest.raises(kcal.InvalidInputError, match=r"b\.parquet must have ids of the type .*int64; got string"):
        predict(tmp_path, model, tmp_path / "out", **options())


def test_hidden_files_of_others_stay(model, tmp_path):
    write(tmp_path / "a.parquet", 10, 1)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".mine.parquet").write_bytes(b"something else")
    predict(tmp_path / "a.parquet", model, tmp_path / "out", **options())
    assert (tmp_path / "out" / ".mine.parquet").exists()


def test_text_is_no_feature(model, tmp_path):
    pq.write_table(pa.table({f"e{index}": ["a"] for index in range(N_FEATURES)}), tmp_path / "a.parquet")
    with pytest.raises(kcal.KcalError, match="column 'e0' must be numbers to be a feature; got string"):
        predict(tmp_path, model, tmp_path / "out", **options())


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
