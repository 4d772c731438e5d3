package nearpath_test

import (
	"errors"
	"testing"
	"time"

	"nearpath.io/nearpath"
	"nearpath.io/nearpath/internal/fakenode"
)

// The node closes both connections, as a restarting node does. Both endpoints rejoin at their sockets, and calls use shared memory again.
func TestEndpointsRejoinAfterANodeRestart(t *testing.T) {
	startFunction(t, "echo")
	old := map[string]uint16{}
	node.Await(func(v *fakenode.View) bool {
		for _, function := range []string{"echo.fn", "shop.fn"} {
			for _, m := range v.Alive(function) {
				old[function] = max(old[function], m.Number)
			}
		}
		return true
	})
	node.CloseConnections("shop.fn")
	node.CloseConnections("echo.fn")
	for end := time.Now().Add(testTimeout); ; time.Sleep(time.Millisecond) {
		r, err := shmClient().Do(testContext(t), "echo", &nearpath.Request{Body: []byte("again")})
		if err == nil && string(r.Body) == "again" && renewed(old) {
			return
		}
		if err != nil && !errors.Is(err, nearpath.ErrNoPeer) && !errors.Is(err, nearpath.ErrDied) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func renewed(old map[string]uint16) (all bool) {
	node.Await(func(v *fakenode.View) bool {
		all = true
		for function, number := range old {
			alive := v.Alive(function)
			all = all && len(alive) == 1 && alive[0].Number > number
		}
		return true
	})
	return all
}

func TestRejoinDelaysGrowToTheMaximum(t *testing.T) {
	pauses := nearpath.Backoff()
	var sum time.Duration
	for range 10 {
		sum += pauses()
	}
	if last := pauses(); last != 5*time.Second || sum < 10*time.Second || nearpath.Backoff()() != 100*time.Millisecond {
		t.Errorf("%v, %v in all", last, sum)
	}
}
