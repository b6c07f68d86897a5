"""What is told of the data: a line for each file that is named, and one for each directory of many files."""

from __future__ import annotations

from pathlib import Path

import pytest

from codeact_team.core.sandbox_description import DataEntry
from codeact_team.executors.workspace.given import GivenData
from codeact_team.executors.workspace.telling import tell


def described(*paths: Path) -> list[DataEntry]:
    given = GivenData([str(path) for path in paths], mib=None, files=None)
    return [one.entry for one in tell(given.find())]


def folder(place: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


def test_tables_are_described_by_their_first_lines(tmp_path: Path) -> None:
    rows = "".join(f"{number},{'x' * 300}\n" for number in range(1000))
    (tmp_path / "sales.CSV").write_text(f"\ufeffregion,total\r\n{rows}")
    (tmp_path / "notes.txt").write_text("not a table\n")
    (tmp_path / "odd.tsv").write_bytes(b"a\tb\n\xff\t\x1b[31m\n")
    (tmp_path / "wide.csv").write_bytes("a,b\n".encode("utf-16"))
    sales, notes, odd, wide = found = described(
        *(tmp_path / name for name in ("sales.CSV", "notes.txt", "odd.tsv", "wide.csv"))
    )
    assert [file.path for file in found] == ["sales.CSV", "notes.txt", "odd.tsv", "wide.csv"]
    assert sales.size == (tmp_path / "sales.CSV").stat().st_size
    assert sales.head[0] == "region,total"
    assert [len(line) for line in sales.head[1:]] == [200] * 4
    assert notes == DataEntry("notes.txt", 12)
    assert "encoding='cp1252'" in odd.head[0]
    assert odd.head[1:] == ["a\tb", "\xff\t\x1b[31m"]
    assert "encoding='utf-16'" in wide.head[0]
    assert wide.head[1:] == ["a,b"]


@pytest.mark.parametrize(
    ("encoding", "told"),
    [
        ("utf-8", ""),
        ("utf-8-sig", ""),
        ("cp1252", "cp1252"),
        ("utf-16", "utf-16"),
        ("utf-16-le", "utf-16-le"),
        ("utf-16-be", "utf-16-be"),
    ],
)
def test_a_table_is_shown_in_whatever_encoding_it_is(tmp_path: Path, encoding: str, told: str) -> None:
    # more than is read of it
    text = "Straße;Größe\n" + "Müllerstraße;3,5\n" * 2000
    (tmp_path / "a.csv").write_text(text, encoding=encoding)
    [file] = described(tmp_path / "a.csv")
    remark, lines = (file.head[0], file.head[1:]) if told else ("", file.head)
    assert lines == text.splitlines()[:5]
    assert told in remark


def test_what_is_no_text_is_not_shown_as_one(tmp_path: Path) -> None:
    for name, data in {"a.csv": bytes(range(256)) * 40, "b.csv": b"a,b\n\0\0\n", "c.csv": b""}.items():
        (tmp_path / name).write_bytes(data)
    assert not any(file.head for file in described(*sorted(tmp_path.iterdir())))


def test_a_directory_of_many_files_is_summed_up_and_hides_no_other_data(tmp_path: Path) -> None:
    months = folder(tmp_path / "months", {f"shop_{n:02}.csv": f"day,amount\n1,{n}\n" for n in range(50)})
    (tmp_path / "few").mkdir()
    few = folder(tmp_path / "few", {"a.csv": "x\n", "b.csv": "y\n"})
    (big := tmp_path / "big.csv").write_text("id,price\n1,2\n")
    summed, *files = described(months, few, big)
    assert (summed.path, summed.files, summed.size) == ("months/", 50, 50 * 15 + 40)
    assert summed.head == ["50 .csv: shop_00.csv to shop_49.csv; all begin with day,amount"]
    assert [(file.path, file.head) for file in files] == [
        ("few/a.csv", ["x"]),
        ("few/b.csv", ["y"]),
        ("big.csv", ["id,price", "1,2"]),
    ]


def test_a_directory_is_summed_up_by_the_kinds_of_its_files(tmp_path: Path) -> None:
    mixed = {
        f"{year}/{n:02}.csv": f"{'a,b' if n % 4 else 'c,d'}\n" for year in (2024, 2025) for n in range(8)
    }
    packed = {f"old/{n}.CSV.gz": "" for n in range(3)}
    rest = {"README": "", "one.md": "", **dict.fromkeys(["1.png", "2.png", "x.bin"], "")}
    (entry,) = described(folder(tmp_path / "in", mixed | packed | rest))
    assert entry.head == [
        (
            "16 .csv: 2024/00.csv to 2025/07.csv; 12 of the first 16 begin with a,b; "
            "4 of the first 16 begin with c,d"
        ),
        "3 .csv.gz: old/0.CSV.gz to old/2.CSV.gz",
        "2 .png: 1.png to 2.png",
        "1 without an ending: README",
        "2 other files",
    ]


def test_a_directory_of_few_files_is_told_file_by_file_and_an_empty_one_as_empty(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    few = folder(tmp_path / "few", {f"{n}.txt": "" for n in range(20)})
    empty, *files = described(tmp_path / "empty", few)
    assert empty == DataEntry("empty/", 0, [], files=0)
    assert [file.path for file in files] == sorted(f"few/{n}.txt" for n in range(20))
