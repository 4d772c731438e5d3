package endpoint

import (
	"context"
	"errors"
	"time"

	"nearpath.io/nearpath/internal/memory"
	"nearpath.io/nearpath/internal/reason"
)

// Reply is the answer of a handler.
type Reply struct {
	Status    uint16
	Reason    uint16
	Platform  bool
	HeadBytes []byte
	BodyBytes []byte
}

// Respond sends the answer, once. The answer of an event is dropped.
func (in *IncomingCall) Respond(reply *Reply) error {
	var err error
	if in.Kind == memory.KindCall {
		err = in.reply(reply)
	}
	in.settle(reply.Status >= 500 || err != nil)
	return err
}

// settle ends the call on this side.
func (in *IncomingCall) settle(failed bool) {
	in.message.Lease.Release() // only now: the answer may refer to the request in its slot
	in.Cancel()
	e := in.end
	var last bool
	if in.Kind == memory.KindCall {
		e.mu.Lock()
		delete(e.taken, in.Call)
		delete(e.bodies, in.Call) // the rest of the request is dropped
		e.counters.Closed(now()-in.started, failed)
		last = e.isFinished()
		e.mu.Unlock()
	}
	if in.Stream != nil {
		in.Stream.Close()
	}
	if last {
		e.reportDrained()
	}
}

func (in *IncomingCall) reply(reply *Reply) error {
	if in.isCancelled() { // the caller's side drops this answer, which returns the call's credit
		reply = &Reply{Status: 499, Reason: reason.CallerGone, Platform: true}
	}
	envelope := in.envelope(reply)
	ctx := context.Background() // a cancelled call still gets its answer, which returns the call's credit
	for {
		err := in.end.transmit(ctx, in, envelope, reply.HeadBytes, reply.BodyBytes, nil)
		if errors.As(err, new(errBrokenOff)) {
			in.end.cancel(in.Call)
			return nil
		}
		if !isOutOfSlots(err) {
			return err
		}
		if err := in.awaitSlot(reply); err != nil {
			return err
		}
	}
}

func (in *IncomingCall) envelope(reply *Reply) memory.Envelope {
	envelope := memory.Envelope{
		Kind: memory.KindAnswer, Status: reply.Status, Reason: reply.Reason, Call: in.Call, Trace: in.Trace, Span: in.Span,
	}
	if reply.Platform {
		envelope.Flags = memory.FlagPlatform
	}
	return envelope
}

func (in *IncomingCall) isCancelled() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.err == context.Canceled
}

// isOutOfSlots reports whether there was no free slot.
func isOutOfSlots(err error) bool { return err == memory.ErrExhausted || err == memory.ErrBound }

func (in *IncomingCall) awaitSlot(reply *Reply) error {
	in.release(reply)
	time.Sleep(maxSlotDelay) // a freed slot causes no wakeup
	if in.end.State() > memory.Withdrawn {
		return ErrClosed
	}
	return nil
}

// Begin sends the beginning of an answer whose body is streamed; total is its length in bytes, or memory.TotalUnknown. The handler
// continues with Write and End. After an error nothing was sent, and the handler calls Respond.
func (in *IncomingCall) Begin(reply *Reply, total uint64) error {
	if in.Kind != memory.KindCall {
		return ErrNotWanted
	}
	for {
		if err := in.Err(); err != nil {
			return err
		}
		envelope := in.envelope(reply)
		envelope.Total = total
		w, sent, err := in.end.begin(in, &envelope, reply.HeadBytes, reply.BodyBytes, true, nil)
		if err == nil {
			in.writer = w
			return w.Write(in, reply.BodyBytes[sent:], false)
		}
		if !isOutOfSlots(err) {
			return err
		}
		if err := in.awaitSlot(reply); err != nil {
			return err
		}
	}
}

// HasBegun reports whether Begin has sent the beginning: then the handler calls End, not Respond.
func (in *IncomingCall) HasBegun() bool { return in.writer != nil }

// Write sends more of the answer, and waits while the window is full.
func (in *IncomingCall) Write(body []byte) error { return in.writer.Write(in, body, false) }

// End ends an answer after Begin: complete, or aborted.
func (in *IncomingCall) End(whole bool) error {
	var err error
	if whole {
		err = in.writer.Write(in, nil, true)
	}
	if !whole || err != nil {
		in.writer.Abandon()
		in.end.cancel(in.Call)
	}
	in.settle(!whole || err != nil)
	return err
}

// release frees the request's slot before the answer waits for another one: else calls that hold all slots would wait for each other.
// The answer may refer to the bytes in the slot, so it is copied.
func (in *IncomingCall) release(reply *Reply) {
	if in.message.Lease.Held() {
		reply.BodyBytes, reply.HeadBytes = copyBytes(reply.BodyBytes), copyBytes(reply.HeadBytes)
		in.message.Lease.Release()
	}
}
