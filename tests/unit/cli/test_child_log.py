from dspark.cli import child_log
from dspark.cli.child_log import ChildLog


def test_lines_split_over_chunks_are_put_together(tmp_path):
    with ChildLog(tmp_path / "x.log") as log:
        assert log.feed(b"rea") == []
        assert log.feed(b"dy\nnext") == ["ready"]
        assert log.tail() == ["ready", "next"]


def test_a_line_without_end_is_cut(tmp_path):
    with ChildLog(tmp_path / "x.log") as log:
        (line,) = log.feed(b"x" * (1 << 17))
        assert len(line) == 1 << 17
        assert log.feed(b"y\n") == ["y"]


def test_lines_are_echoed_when_asked(tmp_path):
    seen: list[str] = []
    with ChildLog(tmp_path / "x.log", seen.append) as log:
        log.feed(b"a\nb\n")
    assert seen == ["a", "b"]


def test_the_file_is_replaced_when_it_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(child_log, "_MAX_FILE_BYTES", 4)
    with ChildLog(tmp_path / "x.log") as log:
        log.feed(b"first\n")
        log.feed(b"second\n")
    assert (tmp_path / "x.log").read_text() == "second\n"
    assert (tmp_path / "x.log.1").read_text() == "first\n"
