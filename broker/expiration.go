package broker

import (
	"strconv"

	"github.com/firemq/firemq/broker/policy"
)

// ParseExpiration reads a message's time to live in ms, written as a decimal number of at most policy.MaxTTL; why is
// RabbitMQ's reason against it, "" for a good one. Any goroutine.
func ParseExpiration(b []byte) (ms int64, why string) {
	digits := b
	negative := false
	if len(b) > 0 && (b[0] == '-' || b[0] == '+') {
		negative = b[0] == '-'
		digits = b[1:]
	}
	n := 0
	for n < len(digits) && digits[n] >= '0' && digits[n] <= '9' {
		n++
	}
	switch {
	case n == 0:
		return 0, "no_integer"
	case n < len(digits):
		return 0, "{leftover_string," + strconv.Quote(string(digits[n:])) + "}"
	}
	for len(digits) > 1 && digits[0] == '0' {
		digits = digits[1:]
	}
	ms, err := strconv.ParseInt(string(digits), 10, 64)
	switch {
	case negative && string(digits) != "0":
		return 0, "{value_negative,-" + string(digits) + "}"
	case err != nil || ms > policy.MaxTTL:
		return 0, "{value_too_large," + string(digits) + "}"
	}
	return ms, ""
}
