package endpoint_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"nearpath.io/nearpath/internal/endpoint"
	"nearpath.io/nearpath/internal/fakenode"
	"nearpath.io/nearpath/internal/memory"
)

// startStreamingPair is startPair with a callee that streams bodies.
func startStreamingPair(t testing.TB, config fakenode.Config, handle func(*endpoint.IncomingCall)) (*domain, *endpoint.Endpoint, *endpoint.Endpoint) {
	config.Edges = [][2]string{{"shop.fn", "echo.fn"}}
	d := start(t, config)
	d.streams = true
	callee := d.join("echo.fn", handle)
	caller := d.join("shop.fn", nil)
	d.awaitRoute(caller, "echo")
	return d, caller, callee
}

// echoStream answers with the received bytes as they arrive.
func echoStream(in *endpoint.IncomingCall) {
	if in.Stream == nil {
		echo(in)
		return
	}
	err := in.Begin(&endpoint.Reply{Status: 200}, memory.TotalUnknown)
	for piece := make([]byte, 10_000); err == nil; {
		var n int
		if n, err = in.Stream.Read(piece); n > 0 {
			err = in.Write(piece[:n])
		}
	}
	if in.HasBegun() {
		_ = in.End(err == io.EOF)
	} else {
		_ = in.Respond(&endpoint.Reply{Status: 500})
	}
}

func random(bytes int) []byte {
	body := make([]byte, bytes)
	for k := range body {
		body[k] = byte(rand.Uint32())
	}
	return body
}

func write(x *endpoint.Exchange, body []byte) error {
	for len(body) > 0 {
		n := min(len(body), 1+rand.IntN(100_000))
		if err := x.Write(body[:n]); err != nil {
			return err
		}
		body = body[n:]
	}
	return x.Finish()
}

func TestBothBodiesStreamConcurrently(t *testing.T) {
	d, caller, _ := startStreamingPair(t, fakenode.Config{}, echoStream)
	for _, size := range []int{0, 1, 100_000, 5 << 20} {
		body := random(size)
		x, err := caller.Open(testContext(t), &endpoint.CallRequest{Function: "echo"}, true)
		if err != nil {
			t.Fatal(err)
		}
		sent := make(chan error, 1)
		go func() { sent <- write(x, body) }()
		var answer endpoint.CallResponse
		rest, err := x.Answer(&answer)
		if err != nil || rest == nil || answer.Status != 200 {
			t.Fatalf("%v %v", err, answer)
		}
		got, err := io.ReadAll(rest)
		if err != nil || !bytes.Equal(got, body) {
			t.Fatalf("%d bytes: %v, %d back", size, err, len(got))
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		x.Close()
	}
	d.awaitFreeSlots()
}

// A reader that does not read blocks the writer: at most a window of parts is in the pool.
func TestASlowReaderBlocksTheWriter(t *testing.T) {
	begun, proceed := make(chan *endpoint.IncomingCall, 1), make(chan struct{})
	d, caller, _ := startStreamingPair(t, fakenode.Config{}, func(in *endpoint.IncomingCall) {
		begun <- in
		<-proceed
		got, err := io.ReadAll(in.Stream)
		if err != nil {
			t.Error(err)
		}
		_ = in.Respond(&endpoint.Reply{Status: 200, BodyBytes: got[len(got)-3:]})
	})
	x, err := caller.Open(testContext(t), &endpoint.CallRequest{Function: "echo"}, true)
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() { sent <- write(x, append(make([]byte, 3<<20), "end"...)) }()
	<-begun
	awaitDone(t, "the window is full", func() {
		for d.Pool.TakenSlots() < 7 {
			time.Sleep(time.Millisecond)
		}
	})
	select {
	case err := <-sent:
		t.Fatalf("the writer did not wait: %v", err)
	case <-time.After(20 * time.Millisecond): // an unblocked writer would have filled the pool
	}
	if taken := d.Pool.TakenSlots(); taken > 8 {
		t.Errorf("%d slots are taken", taken)
	}
	close(proceed)
	var answer endpoint.CallResponse
	if _, err := x.Answer(&answer); err != nil || string(answer.BodyBytes) != "end" {
		t.Fatalf("%v %q", err, answer.BodyBytes)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	d.awaitFreeSlots()
}

func TestAnAnswerBeforeTheEndOfTheBodyStopsTheBody(t *testing.T) {
	d, caller, _ := startStreamingPair(t, fakenode.Config{}, func(in *endpoint.IncomingCall) {
		_ = in.Respond(&endpoint.Reply{Status: 200, BodyBytes: []byte("enough")})
	})
	x, err := caller.Open(testContext(t), &endpoint.CallRequest{Function: "echo"}, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := write(x, make([]byte, 20<<20)); err != endpoint.ErrNotWanted {
		t.Fatal(err)
	}
	var answer endpoint.CallResponse
	if _, err := x.Answer(&answer); err != nil || string(answer.BodyBytes) != "enough" {
		t.Fatal(err)
	}
	d.awaitFreeSlots()
}

func TestAClosedAnswerStopsTheCallee(t *testing.T) {
	ended := make(chan error, 1)
	d, caller, _ := startStreamingPair(t, fakenode.Config{}, func(in *endpoint.IncomingCall) {
		err := in.Begin(&endpoint.Reply{Status: 200}, memory.TotalUnknown)
		for err == nil {
			err = in.Write(make([]byte, 5000))
		}
		_ = in.End(false)
		ended <- err
	})
	for _, leave := range []func(*endpoint.Exchange, context.CancelFunc){
		func(x *endpoint.Exchange, _ context.CancelFunc) { x.Close() },
		func(_ *endpoint.Exchange, cancel context.CancelFunc) { cancel() },
	} {
		ctx, cancel := context.WithCancel(testContext(t))
		defer cancel()
		x, err := caller.Open(ctx, &endpoint.CallRequest{Function: "echo"}, false)
		if err != nil {
			t.Fatal(err)
		}
		rest, err := x.Answer(&endpoint.CallResponse{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(rest, make([]byte, 100_000)); err != nil {
			t.Fatal(err)
		}
		leave(x, cancel)
		awaitDone(t, "the end of the callee", func() {
			if err := <-ended; err == nil {
				t.Error("the callee was not notified")
			}
		})
	}
	d.awaitFreeSlots()
}

func TestAnAbortedBodyIsAnErrorAtItsReader(t *testing.T) {
	seen := make(chan error, 1)
	d, caller, _ := startStreamingPair(t, fakenode.Config{}, func(in *endpoint.IncomingCall) {
		_, err := io.ReadAll(in.Stream)
		seen <- err
		_ = in.Respond(&endpoint.Reply{Status: 200})
	})
	x, err := caller.Open(testContext(t), &endpoint.CallRequest{Function: "echo"}, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	why := errors.New("disk error")
	x.Abort(why)
	if _, err := x.Answer(&endpoint.CallResponse{}); err != why {
		t.Fatal(err)
	}
	awaitDone(t, "the notification of the callee", func() {
		if err := <-seen; err != context.Canceled {
			t.Error(err)
		}
	})
	d.awaitFreeSlots()
}

func TestAnAbortedAnswerIsAnErrorAtItsReader(t *testing.T) {
	d, caller, callee := startStreamingPair(t, fakenode.Config{}, func(in *endpoint.IncomingCall) {
		_ = in.Begin(&endpoint.Reply{Status: 200, BodyBytes: []byte("half")}, memory.TotalUnknown)
		if string(in.HeadBytes()) == "" {
			_ = in.End(false)
		}
	})
	head, _ := memory.AppendField(nil, "x-die", "1")
	for want, request := range map[error]*endpoint.CallRequest{endpoint.ErrTruncated: {Function: "echo"}, endpoint.ErrDied: {Function: "echo", HeadBytes: head}} {
		x, err := caller.Open(testContext(t), request, false)
		if err != nil {
			t.Fatal(err)
		}
		rest, err := x.Answer(&endpoint.CallResponse{})
		if err != nil {
			t.Fatal(err)
		}
		if request.HeadBytes != nil {
			callee.Close()
		}
		got, err := io.ReadAll(rest)
		if err != want || string(got) != "half" {
			t.Errorf("%v instead of %v, %q", err, want, got)
		}
		x.Close()
		if request.HeadBytes != nil {
			break
		}
		if caller.HasRoute("echo") == false {
			t.Fatal("the channel broke")
		}
	}
	d.Sweep()
	d.awaitFreeSlots()
}

// A body that has begun completes after its callee is withdrawn.
func TestABodyCompletesAfterItsCalleeIsWithdrawn(t *testing.T) {
	began := make(chan struct{})
	d, caller, _ := startStreamingPair(t, fakenode.Config{}, func(in *endpoint.IncomingCall) {
		close(began)
		got, _ := io.ReadAll(in.Stream)
		_ = in.Respond(&endpoint.Reply{Status: 200, BodyBytes: got[:1]})
	})
	x, err := caller.Open(testContext(t), &endpoint.CallRequest{Function: "echo"}, true)
	if err != nil {
		t.Fatal(err)
	}
	<-began
	d.Withdraw(1)
	awaitDone(t, "the withdrawal", func() {
		for caller.HasRoute("echo") {
			time.Sleep(time.Millisecond)
		}
	})
	if err := write(x, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	var answer endpoint.CallResponse
	if _, err := x.Answer(&answer); err != nil || len(answer.BodyBytes) != 1 {
		t.Fatal(err)
	}
	awaitDone(t, "drained of both", func() { d.Await((*fakenode.View).Drained) })
}

// Many streams share a small pool: windows shrink, and no stream waits forever.
func TestManyStreamsCompleteInASmallPool(t *testing.T) {
	config := fakenode.Config{Capacity: 16, Sizes: []memory.ClassSize{{Size: 256, Count: 64}, {Size: 4096, Count: 64}}}
	d, caller, _ := startStreamingPair(t, config, echoStream)
	done := make(chan error, 16)
	for range cap(done) {
		go func() {
			body := random(200_000)
			x, err := caller.Open(testContext(t), &endpoint.CallRequest{Function: "echo"}, true)
			if err != nil {
				done <- err
				return
			}
			defer x.Close()
			go func() { _ = write(x, body) }()
			rest, err := x.Answer(&endpoint.CallResponse{})
			if err == nil {
				var got []byte
				if got, err = io.ReadAll(rest); err == nil && !bytes.Equal(got, body) {
					err = errors.New("other bytes came back")
				}
			}
			done <- err
		}()
	}
	for range cap(done) {
		awaitDone(t, "the end of a stream", func() {
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	d.awaitFreeSlots()
}
