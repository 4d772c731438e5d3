package party

import (
	"context"
	"errors"
	"time"

	"nearpath.io/nearpath/internal/memory"
	"nearpath.io/nearpath/internal/reason"
)

// Reply is an answer to give.
type Reply struct {
	Status    uint16
	Reason    uint16
	Platform  bool
	HeadBytes []byte
	BodyBytes []byte
}

// Respond gives the answer, once. An event's answer goes nowhere.
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
	in.message.Lease.Release() // only now: the answer may be made of the request in its slot
	in.Cancel()
	e := in.end
	var last bool
	if in.Kind == memory.KindCall {
		e.mu.Lock()
		delete(e.taken, in.Call)
		delete(e.bodies, in.Call) // the rest of the request is not wanted
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
	if in.isCancelled() { // its answer is not sent on, but gives the caller its credit back
		reply = &Reply{Status: 499, Reason: reason.CallerGone, Platform: true}
	}
	envelope := in.envelope(reply)
	ctx := context.Background() // a caller that left still gets its answer: that gives its credit back
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

// isOutOfSlots says that there is no slot now.
func isOutOfSlots(err error) bool { return err == memory.ErrExhausted || err == memory.ErrBound }

func (in *IncomingCall) awaitSlot(reply *Reply) error {
	in.release(reply)
	time.Sleep(lastPause) // nobody rings for a free slot
	if in.end.State() > memory.Withdrawn {
		return ErrClosed
	}
	return nil
}

// Begin sends the beginning of an answer whose body is written as it comes; total is its bytes, or memory.TotalUnknown. Then
// Write, and End. When it fails nothing was sent, and Answer is still owed.
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

// HasBegun says whether Begin has sent something: then End is owed, not Answer.
func (in *IncomingCall) HasBegun() bool { return in.writer != nil }

// Write sends more of the answer, and waits while its reader is behind.
func (in *IncomingCall) Write(body []byte) error { return in.writer.Write(in, body, false) }

// End ends an answer that has begun: whole, or broken off.
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

// release releases the request's slot before an answer waits for another: else as many calls as there are slots would wait for each
// other. The answer may be made of what lies in the slot.
func (in *IncomingCall) release(reply *Reply) {
	if in.message.Lease.Held() {
		reply.BodyBytes, reply.HeadBytes = copyBytes(reply.BodyBytes), copyBytes(reply.HeadBytes)
		in.message.Lease.Release()
	}
}
