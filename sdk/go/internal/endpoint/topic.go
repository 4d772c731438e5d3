package endpoint

import "strings"

// Selects reports whether a filter selects a topic: MQTT 5.0, section 4.7. Leading wildcards do not select topics that begin with $.
func Selects(filter, topic string) bool {
	if strings.HasPrefix(topic, "$") && (strings.HasPrefix(filter, "+") || strings.HasPrefix(filter, "#")) {
		return false
	}
	for {
		wanted, filters, moreFilter := strings.Cut(filter, "/")
		level, levels, moreTopic := strings.Cut(topic, "/")
		switch {
		case wanted == "#":
			return true
		case wanted != "+" && wanted != level:
			return false
		case !moreFilter:
			return !moreTopic
		case !moreTopic:
			return filters == "#"
		}
		filter, topic = filters, levels
	}
}

// IsTopic reports whether events can be published to a topic of that name: no wildcards.
func IsTopic(topic string) bool {
	return topic != "" && len(topic) <= 0xffff && !strings.ContainsAny(topic, "+#\x00")
}
