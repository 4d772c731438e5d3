package nearpath

import (
	"net/http"
	"time"
)

// Backoff returns the delays between attempts to join.
func Backoff() func() time.Duration { return new(backoff).next }

// ReportedPath parses an answer's header field for a process outside a domain.
func ReportedPath(field string) (Path, string) {
	return reportedPath(http.Header{pathField: {field}}, nil, "function")
}
