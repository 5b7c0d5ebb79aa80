"""Routing: which queues a message reaches."""
import pika
import pytest

from conftest import ready


class Fabric:
    """One exchange with named queues, to ask which of them a publish reaches."""

    def __init__(self, channel, name):
        self.channel, self.name, self.queues = channel, name, {}

    def exchange(self, kind, suffix="", **properties):
        self.channel.exchange_declare(self.name + suffix, kind, auto_delete=True, **properties)
        return self.name + suffix

    def bind(self, label, exchange, key="", arguments=None):
        if label not in self.queues:
            self.queues[label] = self.channel.queue_declare("", exclusive=True).method.queue
        self.channel.queue_bind(self.queues[label], exchange, key, arguments)

    def reached(self, exchange, key="", headers=None):
        """The labels of the queues that one publish reaches, each once a copy."""
        properties = pika.BasicProperties(headers=headers) if headers is not None else None
        self.channel.confirm_delivery()
        self.channel.basic_publish(exchange, key, b"m", properties)
        labels = [label for label, queue in self.queues.items() for _ in range(ready(self.channel, queue))]
        for queue in self.queues.values():
            self.channel.queue_purge(queue)
        return "".join(sorted(labels))


@pytest.fixture
def fabric(channel, name):
    return Fabric(channel, name)


def test_direct_matches_the_exact_key(fabric):
    exchange = fabric.exchange("direct")
    fabric.bind("a", exchange, "red")
    fabric.bind("b", exchange, "red")
    fabric.bind("b", exchange, "green")
    assert fabric.reached(exchange, "red") == "ab"
    assert fabric.reached(exchange, "green") == "b"
    assert fabric.reached(exchange, "re") == ""
    assert fabric.reached(exchange, "") == ""


def test_fanout_ignores_the_key(fabric):
    exchange = fabric.exchange("fanout")
    fabric.bind("a", exchange, "x")
    fabric.bind("a", exchange, "y")
    fabric.bind("b", exchange)
    assert fabric.reached(exchange, "whatever") == "ab"


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("kern.critical", ["kern.critical"], ["kern", "kern.critical.x", "Kern.critical"]),
        ("*.critical", ["kern.critical", ".critical"], ["critical", "a.b.critical"]),
        ("kern.*", ["kern.x", "kern."], ["kern", "kern.x.y"]),
        ("*", ["one"], ["", "one.two"]),
        ("#", ["", "one", "a.b.c", "."], []),
        ("a.#", ["a", "a.b", "a.b.c"], ["", "b.a", "ab"]),
        ("#.z", ["z", "y.z", "x.y.z"], ["z.y", ""]),
        ("a.#.z", ["a.z", "a.b.z", "a.b.c.z"], ["a", "z", "a.b"]),
        ("*.#", ["a", "a.b"], [""]),
        ("#.*", ["a", "a.b"], [""]),
        ("a.*.#.c", ["a.b.c", "a.b.x.y.c"], ["a.c"]),
        ("#.a.#", ["a", "x.a", "a.x", "x.a.y"], ["x", "xa"]),
        ("a..b", ["a..b"], ["a.b", "a.x.b"]),
        ("a*b.c", ["a*b.c"], ["axb.c"]),
    ],
)
def test_topic_patterns(fabric, pattern, matching, others):
    exchange = fabric.exchange("topic")
    fabric.bind("a", exchange, pattern)
    for key in matching:
        assert fabric.reached(exchange, key) == "a", f"{pattern!r} matches {key!r}"
    for key in others:
        assert fabric.reached(exchange, key) == "", f"{pattern!r} does not match {key!r}"


def test_topic_delivers_one_copy_however_many_patterns_match(fabric):
    exchange = fabric.exchange("topic")
    for pattern in ("a.b", "a.*", "#", "*.b"):
        fabric.bind("a", exchange, pattern)
    assert fabric.reached(exchange, "a.b") == "a"


@pytest.mark.parametrize(
    ("criteria", "matching", "others"),
    [
        ({"x-match": "all", "a": 1, "b": "x"}, [{"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 0}], [{"a": 1}, {"a": 2, "b": "x"}, {}, None]),
        ({"a": 1, "b": "x"}, [{"a": 1, "b": "x"}], [{"a": 1}]),
        ({"x-match": "any", "a": 1, "b": "x"}, [{"a": 1}, {"b": "x"}, {"a": 2, "b": "x"}], [{"a": 2}, {}, None]),
        ({"x-match": "all", "a": None}, [{"a": 1}, {"a": "anything"}], [{"b": 1}]),
        ({"x-match": "all"}, [{}, {"a": 1}, None], []),
        ({"x-match": "any"}, [], [{}, {"a": 1}]),
        ({"x-match": "all", "x-ignored": 1, "a": 1}, [{"a": 1}], [{"x-ignored": 1}]),
        ({"x-match": "all-with-x", "x-seen": 1}, [{"x-seen": 1}], [{"a": 1}, {"x-seen": 2}]),
        ({"x-match": "any-with-x", "x-seen": 1, "a": 1}, [{"x-seen": 1}, {"a": 1}], [{"b": 1}]),
        ({"x-match": "all", "a": 1}, [{"a": 2**40 - 2**40 + 1}], [{"a": "1"}, {"a": True}]),
        ({"x-match": "all", "big": 2**40}, [{"big": 2**40}], [{"big": 2**40 + 1}]),
    ],
)
def test_headers_criteria(fabric, criteria, matching, others):
    exchange = fabric.exchange("headers")
    fabric.bind("a", exchange, "", criteria)
    for headers in matching:
        assert fabric.reached(exchange, "k", headers) == "a", f"{criteria} matches {headers}"
    for headers in others:
        assert fabric.reached(exchange, "k", headers) == "", f"{criteria} does not match {headers}"


def test_exchanges_bind_to_exchanges(fabric, channel):
    source, middle = fabric.exchange("topic", "-source"), fabric.exchange("direct", "-middle")
    fabric.bind("a", middle, "order.paid")
    fabric.bind("b", source, "order.*")
    channel.exchange_bind(middle, source, "order.#")
    assert fabric.reached(source, "order.paid") == "ab"
    assert fabric.reached(source, "order.sent") == "b"
    channel.exchange_unbind(middle, source, "order.#")
    assert fabric.reached(source, "order.paid") == "b"


def test_a_cycle_of_exchanges_delivers_once(fabric, channel):
    first, second = fabric.exchange("fanout", "-1"), fabric.exchange("fanout", "-2")
    channel.exchange_bind(first, second)
    channel.exchange_bind(second, first)
    fabric.bind("a", first)
    fabric.bind("a", second)
    assert fabric.reached(first) == "a"
    channel.exchange_unbind(first, second)
    channel.exchange_unbind(second, first)


def test_an_alternate_exchange_takes_what_matched_nothing(fabric):
    alternate = fabric.exchange("fanout", "-alternate")
    exchange = fabric.exchange("direct", arguments={"alternate-exchange": alternate})
    fabric.bind("a", exchange, "known")
    fabric.bind("b", alternate)
    assert fabric.reached(exchange, "known") == "a"
    assert fabric.reached(exchange, "unknown") == "b"


def test_alternate_exchanges_chain_and_satisfy_mandatory(fabric, channel):
    last = fabric.exchange("fanout", "-last")
    middle = fabric.exchange("direct", "-middle", arguments={"alternate-exchange": last})
    exchange = fabric.exchange("direct", arguments={"alternate-exchange": middle})
    fabric.bind("a", last)
    fabric.bind("b", exchange, "other")
    assert fabric.reached(exchange, "unknown") == "a"
    channel.basic_publish(exchange, "unknown", b"m", mandatory=True)
    for suffix in ("", "-middle", "-last"):
        channel.exchange_delete(fabric.name + suffix)


def test_cc_and_bcc_add_keys_and_bcc_is_hidden(fabric, channel, name):
    queues = [channel.queue_declare("", exclusive=True).method.queue for _ in range(3)]
    channel.basic_publish("", queues[0], b"m", pika.BasicProperties(headers={"CC": [queues[1]], "BCC": [queues[2]], "k": 1}))
    for queue in queues:
        _, properties, _ = channel.basic_get(queue, auto_ack=True)
        assert properties.headers == {"CC": [queues[1]], "k": 1}


def test_the_default_exchange_reaches_every_queue_by_name(fabric, channel, queue):
    fabric.queues["q"] = queue
    assert fabric.reached("", queue) == "q"
