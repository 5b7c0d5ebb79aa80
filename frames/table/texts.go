package table

// TextProperty is one property that is a short string.
type TextProperty struct {
	Name  string // as AMQP and RabbitMQ's API spell it
	Bit   Present
	Value *string
}

// Texts lists the properties that are short strings, in AMQP's order.
func (p *Properties) Texts() [10]TextProperty {
	return [...]TextProperty{
		{"content_type", HasContentType, &p.ContentType},
		{"content_encoding", HasContentEncoding, &p.ContentEncoding},
		{"correlation_id", HasCorrelationID, &p.CorrelationID},
		{"reply_to", HasReplyTo, &p.ReplyTo},
		{"expiration", HasExpiration, &p.Expiration},
		{"message_id", HasMessageID, &p.MessageID},
		{"type", HasType, &p.Type},
		{"user_id", HasUserID, &p.UserID},
		{"app_id", HasAppID, &p.AppID},
		{"cluster_id", HasClusterID, &p.ClusterID},
	}
}
