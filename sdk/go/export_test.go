package nearpath

import (
	"net/http"
	"time"
)

// Backoff is for tests.
func Backoff() func() time.Duration { return new(backoff).next }

// ReportedPath is the path that a header field of an answer reports, to a process in no domain.
func ReportedPath(field string) (Path, string) {
	return reportedPath(http.Header{pathField: {field}}, nil, "function")
}
