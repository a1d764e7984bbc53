from dispatcher.ingest.sharding import ScanLimits, Sharder
from dispatcher.jsonl import split_lines
from dispatcher.model import Shard


def shards_of(text, rejected=(), **limits):
    sharder = Sharder(ScanLimits(**limits))
    lines = [line for line in split_lines([text]) if not line.blank]
    closed = [sharder.add(line, rejected=index in rejected) for index, line in enumerate(lines)]
    return [shard for shard in [*closed, *sharder.finish()] if shard]


def test_a_shard_closes_at_its_size():
    assert shards_of(b"a\nb\nc\nd\ne", shard_size=2) == [
        Shard(0, 0, 2, 0, 4),
        Shard(1, 2, 2, 4, 4),
        Shard(2, 4, 1, 8, 1),
    ]


def test_a_shard_closes_before_it_is_larger_than_allowed():
    assert [shard.length for shard in shards_of(b"aaa\nbbb\ncccc\nd\n", shard_bytes_max=8)] == [8, 7]


def test_a_line_larger_than_a_shard_stands_alone():
    text = b"a\n" + b"b" * 20 + b"\nc\n"
    assert [(shard.offset, shard.length) for shard in shards_of(text, shard_bytes_max=8)] == [
        (0, 2),
        (2, 21),
        (23, 2),
    ]


def test_blank_lines_count_neither_between_shards_nor_as_lines():
    assert shards_of(b"\n\na\n\nb\n\n\nc\n\n", shard_size=2) == [Shard(0, 0, 2, 2, 5), Shard(1, 2, 1, 9, 2)]


def test_a_rejected_line_keeps_its_index():
    shards = shards_of(b"a\nb\nc\nd\n", rejected={0, 3}, shard_size=2)
    assert [(shard.rejected, shard.requests) for shard in shards] == [((0,), 1), ((3,), 1)]


def test_the_tail_is_cut_smaller_and_the_rest_is_as_ever():
    text = b"".join(b"%03d\n" % number for number in range(100))
    whole, tailed = shards_of(text, shard_size=10), shards_of(text, shard_size=10, tail_size=3)
    assert tailed[:5] == whole[:5]
    assert [shard.count for shard in tailed[5:]] == [3] * 16 + [2]
    assert [shard.number for shard in tailed] == list(range(22))
    assert [shard.first_index for shard in tailed[5:]] == list(range(50, 100, 3))
    assert [shard.offset for shard in tailed[5:]] == [4 * index for index in range(50, 100, 3)]


def test_the_tail_may_be_all_there_is():
    shards = shards_of(b"a\nb\nc\nd\ne\n", rejected={3}, shard_size=100, tail_size=2)
    assert shards == [Shard(0, 0, 2, 0, 4), Shard(1, 2, 2, 4, 4, (3,)), Shard(2, 4, 1, 8, 2)]


def test_bytes_bound_the_shards_of_a_tail_as_well():
    text = b"aaa\nbbb\ncccc\nd\n" * 6
    lengths = [shard.length for shard in shards_of(text, shard_bytes_max=8, tail_size=5)]
    assert max(lengths) <= 8
    assert sum(lengths) == len(text)


def test_no_lines_make_no_shard():
    assert shards_of(b"\n \n") == []
