package nearpath_test

import (
	"fmt"
	"os"
	"testing"
)

// skip ends a test that lacks a prerequisite. `make test` prints and counts the skipped tests.
func skip(t *testing.T, why string) {
	t.Helper()
	if log := os.Getenv("NEARPATH_SKIP_LOG"); log != "" {
		file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatalf("a skip that cannot be noted would be silent: %v", err)
		}
		defer file.Close()
		fmt.Fprintf(file, "sdk/go %s: %s\n", t.Name(), why)
	}
	t.Skip(why)
}
