package endpoint_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"nearpath.io/nearpath/internal/endpoint"
	"nearpath.io/nearpath/internal/fakenode"
	"nearpath.io/nearpath/internal/memory"
)

// testTimeout is the maximum time of a wait in a test.
const testTimeout = 30 * time.Second

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// awaitDone runs a function and fails the test if it exceeds testTimeout.
func awaitDone(t testing.TB, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); do() }()
	select {
	case <-done:
	case <-time.After(testTimeout):
		t.Fatalf("timeout: %s", what)
	}
}

type domain struct {
	testing.TB
	*fakenode.Node
	instances uint64
	streams   bool
}

func start(t testing.TB, config fakenode.Config) *domain {
	config.Dir = t.TempDir()
	node, err := fakenode.Start(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(node.Stop)
	return &domain{t, node, 0, false}
}

func (d *domain) join(function string, handle func(*endpoint.IncomingCall)) *endpoint.Endpoint {
	d.Helper()
	d.instances++
	socket, err := d.Listen(function, d.instances)
	if err != nil {
		d.Fatal(err)
	}
	p, err := endpoint.Join(testContext(d), endpoint.Config{Socket: socket, Handle: handle, Streams: d.streams, MaxBody: 32 << 20, Spin: memory.SpinBudget})
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(p.Close)
	if handle != nil {
		if err := p.Ready(); err != nil {
			d.Fatal(err)
		}
	}
	return p
}

func (d *domain) awaitRoute(p *endpoint.Endpoint, function string) {
	d.Helper()
	awaitDone(d, "the edge to "+function, func() {
		for !p.HasRoute(function) {
			time.Sleep(time.Millisecond)
		}
	})
}

// awaitFreeSlots waits until every slot is free.
func (d *domain) awaitFreeSlots() {
	d.Helper()
	awaitDone(d, "all slots are free", func() {
		for d.Pool.TakenSlots() > 0 {
			time.Sleep(time.Millisecond)
		}
	})
}

func echo(in *endpoint.IncomingCall) {
	_ = in.Respond(&endpoint.Reply{Status: 200, HeadBytes: in.HeadBytes(), BodyBytes: in.BodyBytes(true)})
}

func startPair(t testing.TB, config fakenode.Config, handle func(*endpoint.IncomingCall)) (*domain, *endpoint.Endpoint, *endpoint.Endpoint) {
	config.Edges = [][2]string{{"shop.fn", "echo.fn"}}
	d := start(t, config)
	callee := d.join("echo.fn", handle)
	caller := d.join("shop.fn", nil)
	d.awaitRoute(caller, "echo")
	return d, caller, callee
}

func TestCallsReturnTheAnswerOfTheirCallee(t *testing.T) {
	d, caller, _ := startPair(t, fakenode.Config{}, echo)
	head, _ := memory.AppendField(nil, "x-a", "b")
	for _, size := range []int{0, 1, 7, 100, 5000, 70_000, 1<<20 - 100, 1 << 20, 10 << 20} {
		body := make([]byte, size)
		for k := range body {
			body[k] = byte(rand.Uint32())
		}
		var answer endpoint.CallResponse
		err := caller.Call(testContext(t), &endpoint.CallRequest{Function: "echo", HeadBytes: head, BodyBytes: body, IsInPlace: size == 100}, &answer)
		if err != nil || answer.Status != 200 || !bytes.Equal(answer.BodyBytes, body) || !bytes.Equal(answer.HeadBytes, head) {
			t.Fatalf("%d bytes: %v, status %d, %d bytes back", size, err, answer.Status, len(answer.BodyBytes))
		}
		if answer.Instance != 1 || answer.InPlace() != (size == 100) {
			t.Errorf("instance %d, in place %v", answer.Instance, answer.InPlace())
		}
		answer.Release()
	}
	d.awaitFreeSlots()
	if caller.HeldSlots() != 0 {
		t.Errorf("the caller holds %d bytes", caller.HeldSlots())
	}
	awaitDone(t, "both sides have counted nine calls", func() {
		for counted := d.Counted("shop.fn", "echo.fn"); ; counted = d.Counted("shop.fn", "echo.fn") {
			if counted[0][2] == 9 && counted[0][4] == 0 && counted[1][2] == 9 && counted[1][4] == 0 {
				return
			}
			time.Sleep(time.Millisecond) // the callee counts after it has sent its answer
		}
	})
}

func TestACallWithoutAPeerIsNotSent(t *testing.T) {
	_, caller, _ := startPair(t, fakenode.Config{}, echo)
	err := caller.Call(testContext(t), &endpoint.CallRequest{Function: "unknown"}, &endpoint.CallResponse{})
	if err != endpoint.ErrNoPeer || !endpoint.IsUnsent(err) {
		t.Fatal(err)
	}
}

// The pool has few slots and the rings are small: every call has to wait, and none is lost.
func TestManyCallsCompleteInASmallPool(t *testing.T) {
	config := fakenode.Config{Capacity: 16, Sizes: []memory.ClassSize{{Size: 256, Count: 64}, {Size: 4096, Count: 64}}}
	config.Edges = [][2]string{{"shop.fn", "echo.fn"}}
	d := start(t, config)
	d.join("echo.fn", echo)
	d.join("echo.fn", echo)
	caller := d.join("shop.fn", nil)
	awaitDone(t, "both edges", func() { d.Await(func(v *fakenode.View) bool { return v.Channels() == 2 }) })
	d.awaitRoute(caller, "echo.fn")
	var group sync.WaitGroup
	for k := range 64 {
		group.Go(func() {
			for n := range 100 {
				body := fmt.Appendf(make([]byte, 0, 9000), "%d %d", k, n)
				body = body[:len(body)+rand.IntN(8000)]
				for {
					var answer endpoint.CallResponse
					err := caller.Call(testContext(t), &endpoint.CallRequest{Function: "echo", BodyBytes: body}, &answer)
					if err == memory.ErrExhausted {
						continue // nothing was sent
					}
					if err != nil || !bytes.Equal(answer.BodyBytes, body) {
						t.Errorf("%v, %d bytes for %d", err, len(answer.BodyBytes), len(body))
					}
					break
				}
			}
		})
	}
	awaitDone(t, "the end of all calls", group.Wait)
	d.awaitFreeSlots()
}

// Requests in place hold all slots while their answers are written: the calls must not wait for each other.
func TestAnswersDoNotWaitForTheSlotsOfRequests(t *testing.T) {
	d, caller, _ := startPair(t, fakenode.Config{Sizes: []memory.ClassSize{{Size: 64, Count: 4}, {Size: 4096, Count: 4}}}, echo)
	var group sync.WaitGroup
	for range 32 {
		group.Go(func() {
			for range 20 {
				body := make([]byte, 3000)
				err := caller.Call(testContext(t), &endpoint.CallRequest{Function: "echo", BodyBytes: body}, &endpoint.CallResponse{})
				if err != nil && !endpoint.IsUnsent(err) {
					t.Error(err)
				}
			}
		})
	}
	awaitDone(t, "the end of all calls", group.Wait)
	d.awaitFreeSlots()
}

func TestACancelledCallNotifiesItsCallee(t *testing.T) {
	began, ended := make(chan struct{}), make(chan error, 1)
	d, caller, _ := startPair(t, fakenode.Config{}, func(in *endpoint.IncomingCall) {
		close(began)
		<-in.Done()
		ended <- in.Err()
		_ = in.Respond(&endpoint.Reply{Status: 499})
	})
	ctx, cancel := context.WithCancel(testContext(t))
	go func() { <-began; cancel() }()
	if err := caller.Call(ctx, &endpoint.CallRequest{Function: "echo"}, &endpoint.CallResponse{}); err != context.Canceled {
		t.Fatal(err)
	}
	awaitDone(t, "the cancel", func() {
		if err := <-ended; err != context.Canceled {
			t.Error(err)
		}
	})
	d.awaitFreeSlots()
}

func TestTheCalleeReceivesTheDeadline(t *testing.T) {
	seen, returned := make(chan time.Time, 1), make(chan struct{})
	_, caller, _ := startPair(t, fakenode.Config{}, func(in *endpoint.IncomingCall) {
		deadline, _ := in.Deadline()
		seen <- deadline
		<-in.Done()
		<-returned // both sides read one clock: the answer could be first
		_ = in.Respond(&endpoint.Reply{Status: 504})
	})
	defer close(returned)
	want := time.Now().Add(50 * time.Millisecond)
	ctx, cancel := context.WithDeadline(testContext(t), want)
	defer cancel()
	err := caller.Call(ctx, &endpoint.CallRequest{Function: "echo", Deadline: endpoint.At(want)}, &endpoint.CallResponse{})
	if err != context.DeadlineExceeded {
		t.Fatal(err)
	}
	if got := <-seen; got.Sub(want).Abs() > time.Millisecond {
		t.Errorf("%v, not %v", got, want)
	}
}

func TestAnEventReachesItsCallee(t *testing.T) {
	got := make(chan string, 1)
	d, caller, _ := startPair(t, fakenode.Config{}, func(in *endpoint.IncomingCall) {
		got <- string(in.BodyBytes(false))
		_ = in.Respond(&endpoint.Reply{})
	})
	if err := caller.Call(testContext(t), &endpoint.CallRequest{Function: "echo", BodyBytes: []byte("payload"), Event: true}, nil); err != nil {
		t.Fatal(err)
	}
	awaitDone(t, "the event", func() {
		if text := <-got; text != "payload" {
			t.Error(text)
		}
	})
	d.awaitFreeSlots()
}

func TestAWithdrawnInstanceFinishesItsOpenCalls(t *testing.T) {
	began, finish := make(chan struct{}), make(chan struct{})
	d, caller, _ := startPair(t, fakenode.Config{}, func(in *endpoint.IncomingCall) {
		close(began)
		<-finish
		echo(in)
	})
	result := make(chan error, 1)
	go func() {
		result <- caller.Call(testContext(t), &endpoint.CallRequest{Function: "echo"}, &endpoint.CallResponse{})
	}()
	<-began
	d.Withdraw(1)
	awaitDone(t, "the withdrawal", func() {
		for caller.HasRoute("echo") {
			time.Sleep(time.Millisecond)
		}
	})
	if err := caller.Call(testContext(t), &endpoint.CallRequest{Function: "echo"}, &endpoint.CallResponse{}); err != endpoint.ErrNoPeer {
		t.Fatal(err)
	}
	close(finish)
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	awaitDone(t, "drained of both", func() { d.Await((*fakenode.View).Drained) })
}

func TestADisconnectOfTheNodeEndsTheEndpoint(t *testing.T) {
	d, caller, _ := startPair(t, fakenode.Config{}, echo)
	d.Stop()
	awaitDone(t, "the end of the endpoint", func() { <-caller.Done() })
	if caller.HasRoute("echo") {
		t.Error("new calls are made")
	}
}

// joinMisbehaving joins without the endpoint package and returns the caller's side of a channel.
func joinMisbehaving(t *testing.T, d *domain) (*memory.Channel, *memory.WakeupCell, endpoint.Welcome, *memory.Pool) {
	socket, err := d.Listen("misbehaving.fn", 66)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(testTimeout))
	if err := endpoint.Send(conn, endpoint.NodeRequest{Hello: &endpoint.Hello{Version: 1, Wakeup: "eventfd"}}); err != nil {
		t.Fatal(err)
	}
	var welcome, peer endpoint.NodeMessage
	fds, err := endpoint.Receive(conn, &welcome)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := memory.OpenPool(fds[0], welcome.Welcome.Pool)
	if err != nil {
		t.Fatal(err)
	}
	fds, err = endpoint.Receive(conn, &peer)
	if err != nil {
		t.Fatal(err)
	}
	channel, err := memory.OpenChannel(fds[0], peer.Peer.Capacity)
	if err != nil {
		t.Fatal(err)
	}
	wakeupCell, err := memory.OpenWakeupCell(fds[1], fds[2])
	if err != nil {
		t.Fatal(err)
	}
	return channel, wakeupCell, *welcome.Welcome, pool
}

func TestForgedDescriptorsBreakTheChannel(t *testing.T) {
	forged := map[string]func(c *memory.Channel){
		"no such slot": func(c *memory.Channel) {
			c.Forge(memory.Caller, memory.Descriptor{Slot: ^memory.Slot(0), Generation: 1, Length: 64})
		},
		"another's slot": func(c *memory.Channel) {
			c.Forge(memory.Caller, memory.Descriptor{Slot: memory.NewSlot(0, 3), Generation: 1, Length: 64})
		},
		"too long": func(c *memory.Channel) {
			c.Forge(memory.Caller, memory.Descriptor{Generation: 1, Offset: 8, Length: ^uint32(0)})
		},
		"a broken index":  func(c *memory.Channel) { c.ForgeTail(memory.Caller, 1<<30) },
		"an index behind": func(c *memory.Channel) { c.ForgeTail(memory.Caller, ^uint32(0)) },
	}
	for name, forge := range forged {
		t.Run(name, func(t *testing.T) {
			d := start(t, fakenode.Config{Edges: [][2]string{{"misbehaving.fn", "echo.fn"}, {"shop.fn", "echo.fn"}}})
			d.join("echo.fn", echo)
			caller := d.join("shop.fn", nil)
			d.awaitRoute(caller, "echo")
			channel, wakeupCell, _, _ := joinMisbehaving(t, d)
			forge(channel)
			wakeupCell.Wake()
			awaitDone(t, "the break", func() {
				for channel.State() != memory.Broken {
					wakeupCell.Wake()
					time.Sleep(time.Millisecond)
				}
			})
			var answer endpoint.CallResponse
			if err := caller.Call(testContext(t), &endpoint.CallRequest{Function: "echo", BodyBytes: []byte("still")}, &answer); err != nil || string(answer.BodyBytes) != "still" {
				t.Fatalf("channel of another caller: %v, %q", err, answer.BodyBytes)
			}
		})
	}
}

// The slots are validly offered, their messages are random: the receiver survives all and frees every slot.
func TestTheReceiverSurvivesRandomMessages(t *testing.T) {
	for round := range 30 {
		d := start(t, fakenode.Config{Edges: [][2]string{{"misbehaving.fn", "echo.fn"}}})
		d.streams = round%2 == 1
		d.join("echo.fn", echoStream)
		channel, wakeupCell, welcome, pool := joinMisbehaving(t, d)
		member := memory.NewLeaseHolder(pool, welcome.Endpoint, welcome.Pool)
		end := channel.End(memory.Caller, member, 1)
		for channel.State() == memory.Open && end.Credits() > 0 {
			lease, err := member.Claim(256)
			if err != nil {
				t.Fatal(err)
			}
			envelope := memory.Envelope{
				Kind: memory.MessageKind(1 + rand.IntN(5)), Flags: uint16(rand.IntN(8)), Call: rand.Uint64N(4), Head: rand.Uint32N(9), Body: rand.Uint32N(180), Total: 180,
			}
			envelope.Put(lease.Bytes())
			if rand.IntN(50) == 0 {
				lease.Bytes()[rand.IntN(64)] ^= byte(1 << rand.IntN(8))
			}
			if err := end.Send(&lease, 256, true); err != nil {
				lease.Release()
			}
			wakeupCell.Wake()
			var m memory.Message
			if ok, err := end.Receive(&m); ok && err == nil {
				m.Lease.Release()
			}
		}
	}
}

func TestIsUnsentExcludesErrorsAfterTheSend(t *testing.T) {
	for _, err := range []error{nil, endpoint.ErrDied, endpoint.ErrTruncated, context.Canceled, errors.New("other")} {
		if endpoint.IsUnsent(err) {
			t.Error(err)
		}
	}
}

func BenchmarkCall(b *testing.B) {
	for _, size := range []int{64, 1024, 65536} {
		for _, way := range []string{"copied", "in place"} {
			b.Run(fmt.Sprintf("%d B %s", size, way), func(b *testing.B) {
				_, caller, _ := startPair(b, fakenode.Config{}, echo)
				request := endpoint.CallRequest{Function: "echo", BodyBytes: make([]byte, size), IsInPlace: way == "in place"}
				b.ReportAllocs()
				for b.Loop() {
					var answer endpoint.CallResponse
					if err := caller.Call(context.Background(), &request, &answer); err != nil {
						b.Fatal(err)
					}
					answer.Release()
				}
			})
		}
	}
}
