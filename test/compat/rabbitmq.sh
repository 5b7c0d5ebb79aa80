#!/bin/sh
# What AMQP_CONTROL is to be for a RabbitMQ: "restart", "alarm" and "clear" with rabbitmqctl, for the node
# that RABBITMQ_NODENAME names.
set -eu
case $1 in
restart) rabbitmqctl -q stop_app && rabbitmqctl -q start_app ;;
alarm) rabbitmqctl -q set_vm_memory_high_watermark 0 ;;
clear) rabbitmqctl -q set_vm_memory_high_watermark 0.4 ;;
*) echo "usage: $0 restart|alarm|clear" >&2 && exit 2 ;;
esac
