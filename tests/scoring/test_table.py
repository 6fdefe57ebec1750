"""The response table: what is accepted, what is refused, and with which message."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from scoring import COLUMNS, SCHEMA, TableError, read_tables, sources, validate, write_table

GOOD = {"system": ["s", "s"], "band": ["max", "max"], "L": [8, 8], "stream": [0, 0], "query": [0, 1],
        "label": [1, 0], "answer": [1, None]}  # fmt: skip


def test_a_minimal_table_gets_the_defaults():
    table = validate(GOOD)
    assert table.schema.equals(SCHEMA)
    first, second = table.to_pylist()
    assert (first["architecture"], first["task"], first["split"]) == ("s", "membership", "test")
    assert (first["query_set"], first["options"], first["stream"]) == ("uniform", 2, "0")
    assert second["answer"] is None
    assert first["confidence"] is None


def test_every_accepted_form_gives_the_same_table():
    rows = [{k: v[i] for k, v in GOOD.items()} for i in range(2)]
    numpy = {**GOOD, "L": np.array([8, 8], dtype=np.int16), "stream": np.zeros(2, dtype=np.uint8)}
    forms = [GOOD, rows, pl.DataFrame(GOOD), pa.table(GOOD), numpy]
    tables = [validate(form) for form in forms]
    assert all(t.equals(tables[0]) for t in tables)
    assert validate(tables[0]).equals(tables[0])


def test_confidence_defaults_to_the_probability_of_the_answer():
    table = validate({**GOOD, "answer": [1, 0], "p_yes": [0.9, 0.3]})
    assert table["confidence"].to_pylist() == [0.9, 0.7]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"confidence": [float("nan"), None]}, r"row 0 .*'confidence': nan is not a finite number"),
        ({"p_yes": [0.5, 1.5]}, r"row 1 .*'p_yes': 1.5 is above 1"),
        ({"p_yes": [float("inf"), 0.5]}, r"row 0 .*'p_yes': inf is not a finite number"),
        ({"flops_read": [1.0, -2.0]}, r"row 1 .*'flops_read': -2.0 is below 0"),
        ({"label": [1, 2]}, r"row 1 .*'label': label is outside the question's options"),
        ({"label": [1, None]}, r"row 1 .*'label': missing value"),
        ({"answer": [5, 0]}, r"row 0 .*'answer': answer is outside"),
        ({"answer": ["yes", None]}, r"row 0 .*'answer': 'yes' is not an integer"),
        ({"L": [8, 8.5]}, r"row 1 .*'L': 8.5 is not an integer"),
        ({"L": [0, 8]}, r"row 0 .*'L': 0 is below 1"),
        ({"stream": [0, None]}, r"row 1 .*'stream': missing value"),
        ({"candidate_length": [3, 9]}, r"row 1 .*'candidate_length': candidate is longer than its stream"),
        ({"age": [-1, -1]}, r"row 0 .*'age': a positive has a match"),
        ({"age": [0, 4]}, r"row 1 .*'age': a negative has no match"),
        ({"arm": ["C", "A"]}, r"row 0 .*'arm': 'C' is none of A, B"),
        ({"abstain_kind": ["format", None]}, r"row 0 .*'abstain_kind': set although there is an answer"),
        ({"abstain_kind": [None, "tired"]}, r"row 1 .*'abstain_kind': 'tired' is none of"),
        ({"answer": [1, 0], "confidence": [0.9, None]}, r"row 1 .*'confidence': missing here but given"),
        ({"options": [2, 4]}, r"'options': one system, band and length mixes"),
        ({"options": [4, 4], "p_yes": [0.5, 0.5]}, r"row 0 .*'p_yes': p_yes needs a yes/no question"),
        ({"query": [7, 7]}, r"row 1 .*the same question as row 0 \(system=s, .*stream=0, query=7\)"),
        ({"candidate_len": [3, 3]}, r"unknown column 'candidate_len'; did you mean 'candidate_length'"),
    ],
)
def test_malformed_values_are_refused_by_row_and_column(changes, message):
    with pytest.raises(TableError, match=message):
        validate({**GOOD, **changes}, source="table")


def test_a_missing_column_is_named_with_its_near_miss():
    bad = {("Label" if k == "label" else k): v for k, v in GOOD.items()}
    with pytest.raises(TableError, match=r"required column 'label' is missing.*rename 'Label' to 'label'"):
        validate(bad)


def test_an_empty_table_is_refused():
    with pytest.raises(TableError, match="no rows"):
        validate({k: [] for k in GOOD})


def test_unknown_columns_are_dropped_and_seeds_tell_rows_apart():
    table = validate({**GOOD, "query": [0, 0], "seed": [1, 2], "remark": ["a", "b"]})
    assert table.column_names == [c.name for c in COLUMNS]


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_files_round_trip(tmp_path, study, ending):
    table = validate(study)
    path = write_table(table, tmp_path / f"t.{ending}")
    back = read_tables(path)
    assert back.cast(SCHEMA).equals(table)
    assert sources(back)[0]["rows"] == table.num_rows
    assert len(sources(back)[0]["sha256"]) == 64


def test_stream_names_survive_csv(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("system,band,L,stream,query,label,answer\ns,max,8,007,a,1,\ns,max,8,7,a,1,1.0\n")
    table = read_tables(path)
    assert table["stream"].to_pylist() == ["007", "7"]
    assert table["answer"].to_pylist() == [None, 1]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "system,band,L,stream,query,label,answer\ns,max,8,0,0,1,1\ns,max,8,0,1,x,1\n",
         r"t.csv: line 3, column 'label': 'x' is not an integer"),
        ("t.jsonl", '{"system": "s"}\n{nope\n', r"t.jsonl: line 2 is not JSON"),
        ("t.jsonl", "[1, 2]\n", r"t.jsonl: line 1 is not an object"),
        ("t.parquet", "PAR1 but not really", r"t.parquet: unreadable as parquet"),
        ("t.xlsx", "", r"unknown ending '.xlsx'; use one of .parquet, .csv"),
    ],
)  # fmt: skip
def test_bad_files_are_named_with_their_line(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(TableError, match=message):
        read_tables(path)


def test_missing_files_and_folders_without_tables(tmp_path):
    with pytest.raises(TableError, match="no such file"):
        read_tables(tmp_path / "gone.csv")
    with pytest.raises(TableError, match="no response table in this folder"):
        read_tables(tmp_path)
    with pytest.raises(TableError, match="no response table given"):
        read_tables([])


def test_two_files_must_not_answer_the_same_question(tmp_path):
    one, two = (write_table(GOOD, tmp_path / name) for name in ("a.csv", "b.parquet"))
    with pytest.raises(TableError, match=r"a.csv and .*b.parquet both answer stream 0, query 0 .* as system 's'"):
        read_tables([one, two])
    write_table({**GOOD, "system": ["t", "t"]}, two)
    assert read_tables([one, two]).num_rows == 4
    assert read_tables(tmp_path).num_rows == 4
