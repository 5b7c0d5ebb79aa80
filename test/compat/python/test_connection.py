"""Connections: login, limits, heartbeats, channels."""
import threading

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, ProbableAccessDeniedError, ProbableAuthenticationError

import control
from conftest import VHOST, parameters, poll, product, ready


def test_server_properties_announce_what_clients_look_for(connection):
    properties = connection._impl.server_properties
    assert properties["product"] in ("FireMQ", "RabbitMQ")
    for capability in (
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    ):
        assert properties["capabilities"][capability] is True, capability


def test_tuned_limits_are_rabbitmqs_defaults(connection):
    assert connection._impl.params.channel_max == 2047
    assert connection._impl.params.frame_max == 131072


def test_wrong_password_is_403_and_named_as_such():
    with pytest.raises(ProbableAuthenticationError) as refused:
        pika.BlockingConnection(parameters(credentials=pika.PlainCredentials("guest", "wrong")))
    assert "ACCESS_REFUSED" in str(refused.value)
    assert "Login was refused using authentication mechanism PLAIN" in str(refused.value)


def test_unknown_user_is_told_nothing_else():
    with pytest.raises(ProbableAuthenticationError) as refused:
        pika.BlockingConnection(parameters(credentials=pika.PlainCredentials("nobody", "guest")))
    assert "Login was refused using authentication mechanism PLAIN" in str(refused.value)


def test_unknown_vhost_is_530():
    with pytest.raises(ProbableAccessDeniedError) as refused:
        pika.BlockingConnection(parameters(virtual_host="nowhere"))
    assert "(530) 'NOT_ALLOWED - vhost nowhere not found'" in str(refused.value)


@pytest.mark.parametrize("frame_max", [4096, 8192, 131072])
def test_smaller_frames_are_honoured_both_ways(connect, name, frame_max):
    channel = connect(frame_max=frame_max).channel()
    channel.queue_declare(name, exclusive=True)
    body = bytes(range(256)) * 400
    channel.basic_publish("", name, body)
    assert channel.basic_get(name, auto_ack=True)[2] == body


def test_heartbeats_keep_an_idle_connection(connect):
    connection = connect(heartbeat=1)
    connection.process_data_events(time_limit=4)
    assert connection.is_open
    connection.channel()


def test_a_closed_channel_leaves_its_connection_and_number_usable(connection):
    channel = connection.channel(7)
    with pytest.raises(ChannelClosedByBroker):
        channel.queue_declare("does-not-exist", passive=True)
    assert connection.is_open
    again = connection.channel(7)
    again.queue_declare("", exclusive=True)


def test_many_channels_work_side_by_side(connection, name):
    channels = [connection.channel() for _ in range(50)]
    channels[0].queue_declare(name, exclusive=True)
    for n, channel in enumerate(channels):
        channel.basic_publish("", name, str(n).encode())
        channel.queue_declare(name, passive=True)  # a round trip: the next channel publishes later
    got = [channels[0].basic_get(name, auto_ack=True)[2] for _ in channels]
    assert got == [str(n).encode() for n in range(50)]


def test_the_vhost_in_error_texts_is_the_connections(channel):
    with pytest.raises(ChannelClosedByBroker) as closed:
        channel.queue_declare("does-not-exist", passive=True)
    assert closed.value.reply_text == f"NOT_FOUND - no queue 'does-not-exist' in vhost '{VHOST}'"


def test_product_is_known(connection):
    assert product(connection)


@control.needed
def test_a_publisher_is_told_of_an_alarm(connection, queue):
    told = []
    connection.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
    connection.add_on_connection_unblocked_callback(lambda _, frame: told.append("unblocked"))
    channel = connection.channel()
    channel.basic_publish("", queue, b"m")
    with control.alarm():
        channel.basic_publish("", queue, b"m")
        poll(channel, lambda: told)
        reason = told[0].decode() if isinstance(told[0], bytes) else told[0]
        assert reason.startswith("low on ")
    poll(channel, lambda: len(told) == 2)
    assert told[1] == "unblocked"
    assert ready(channel, queue) == 2


@control.needed
def test_a_restart_is_320_and_keeps_what_was_confirmed(connect, name):
    connection = connect()
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(name, durable=True)
    for n in range(10):
        channel.basic_publish("", name, str(n).encode(), pika.BasicProperties(delivery_mode=2))
    channel.basic_publish("", name, b"transient")
    restarting = threading.Thread(target=control.restart)
    restarting.start()
    with pytest.raises(ConnectionClosedByBroker) as closed:
        while True:
            connection.process_data_events(time_limit=1)
    restarting.join()
    assert closed.value.reply_code == 320
    assert closed.value.reply_text.startswith("CONNECTION_FORCED")
    channel = connect().channel()
    assert [channel.basic_get(name, auto_ack=True)[2] for _ in range(10)] == [str(n).encode() for n in range(10)]
    assert channel.queue_delete(name).method.message_count == 0


def test_a_client_that_is_silent_is_dropped(connect, channel, name):
    silent = connect(heartbeat=1)
    silent.channel().queue_declare(name, exclusive=True)

    def gone():
        probe = channel.connection.channel()
        try:
            probe.queue_declare(name, passive=True)
        except ChannelClosedByBroker as closed:
            return closed.reply_code == 404  # until then it is 405, another connection's
        return False

    poll(channel, gone)
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        silent.process_data_events(time_limit=1)
        silent.channel()
