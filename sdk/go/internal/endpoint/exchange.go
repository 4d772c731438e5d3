package endpoint

import (
	"context"

	"nearpath.io/nearpath/internal/memory"
)

// Exchange is a call whose body and answer are streamed, also at the same time. Close it.
type Exchange struct {
	// Instance is the called instance.
	Instance uint64

	ctx    context.Context
	cancel context.CancelCauseFunc
	end    *channelEnd
	call   *pendingCall
	id     uint64
	writer *BodyWriter
}

// Open makes a call; with open set, more of its body follows. After an error with IsUnsent the caller may use another path. The callee
// is notified when ctx ends.
func (p *Endpoint) Open(ctx context.Context, request *CallRequest, open bool) (*Exchange, error) {
	e := p.choose(request.Function)
	if e == nil {
		return nil, ErrNoPeer
	}
	x := &Exchange{Instance: e.Instance, end: e, call: &pendingCall{done: make(chan error, 1), started: now()}}
	x.ctx, x.cancel = context.WithCancelCause(ctx)
	x.call.streams, x.call.limit = x.ctx, p.config.MaxBody
	envelope := request.envelope(memory.KindCall)
	envelope.Total = uint64(len(request.BodyBytes))
	if open {
		envelope.Total = memory.TotalUnknown
	}
	w, sent, err := e.begin(x.ctx, &envelope, request.HeadBytes, request.BodyBytes, open, x.call)
	if err != nil {
		x.cancel(err)
		return nil, err
	}
	x.id, x.writer = envelope.Call, w
	context.AfterFunc(x.ctx, x.giveUp)
	if rest := request.BodyBytes[sent:]; len(rest) > 0 {
		_ = w.Write(x.ctx, rest, !open) // Answer returns the error
	}
	return x, nil
}

// Write sends more of the body, and waits while the window is full. ErrNotWanted: the call has been answered, or is lost.
func (x *Exchange) Write(body []byte) error { return x.writer.Write(x.ctx, body, false) }

// Finish ends the body.
func (x *Exchange) Finish() error { return x.writer.Write(x.ctx, nil, true) }

// Abort cancels the call for this reason: the body stays incomplete and the answer is dropped.
func (x *Exchange) Abort(why error) { x.cancel(why) }

// Close releases the rest of the answer and notifies the callee.
func (x *Exchange) Close() { x.cancel(errBodyClosed) }

// Answer waits for the answer, or its beginning. The BodyReader has the rest; it is nil if the answer is complete. Call it once.
func (x *Exchange) Answer(answer *CallResponse) (*BodyReader, error) {
	var err error
	select {
	case err = <-x.call.done:
	case <-x.ctx.Done():
		return nil, context.Cause(x.ctx)
	}
	c := x.call
	if err != nil {
		c.done <- nil // for giveUp: there is nothing to release
		return nil, err
	}
	answer.Envelope, answer.Instance = c.message.Envelope, x.Instance
	if c.stream != nil {
		answer.HeadBytes = c.head
		return c.stream, nil
	}
	answer.HeadBytes, answer.BodyBytes = copyBytes(c.message.Head()), copyBytes(c.message.Body())
	c.message.Lease.Release()
	c.done <- nil
	return nil, nil
}

// giveUp drops the answer, or the rest of it, and notifies the callee, once.
func (x *Exchange) giveUp() {
	e, c := x.end, x.call
	e.mu.Lock()
	open := e.open.get(x.id) == c
	if open {
		c.left = true
	}
	for _, w := range e.stalled {
		w.wake()
	}
	e.mu.Unlock()
	switch {
	case c.stream != nil:
		c.stream.Close()
	case !open: // the call has just ended
		<-c.done
		c.message.Lease.Release()
	}
	if open {
		e.cancel(x.id)
	}
}
