package nearpath

import "time"

// ReasonName is for tests.
var ReasonName = reasonName

// Backoff is for tests.
func Backoff() func() time.Duration { return new(backoff).next }
