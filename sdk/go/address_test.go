package nearpath

import "testing"

func TestTheListenerIsWhereTheWatchdogCalls(t *testing.T) {
	for _, each := range []struct{ upstream, port, want string }{
		{"", "", ":8082"},
		{"", "9000", ":9000"},
		{"http://127.0.0.1:5000", "", "127.0.0.1:5000"},
		{"http://127.0.0.1:5000", "9000", "127.0.0.1:5000"},
		{"http://127.0.0.1", "9000", "127.0.0.1:9000"},
		{"http://[::1]", "", "[::1]:80"},
		{"not a url", "9000", ":9000"},
	} {
		if got := listenAddress(each.upstream, each.port); got != each.want {
			t.Errorf("upstream_url=%q PORT=%q: %s, want %s", each.upstream, each.port, got, each.want)
		}
	}
}
