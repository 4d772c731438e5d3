package party

import (
	"context"

	"nearpath.io/nearpath/internal/memory"
)

// Exchange is a call whose body is written as it comes, and whose answer is read as it comes; both at once if one likes. Close it.
type Exchange struct {
	// Instance is the one that was called.
	Instance uint64

	ctx    context.Context
	cancel context.CancelCauseFunc
	end    *channelEnd
	call   *pendingCall
	id     uint64
	writer *BodyWriter
}

// Open makes a call of which more follows when open is set. An error for which Unsent holds leaves other ways open. When ctx ends
// the callee is told.
func (p *Endpoint) Open(ctx context.Context, ask *CallRequest, open bool) (*Exchange, error) {
	e := p.choose(ask.Function)
	if e == nil {
		return nil, ErrNoPeer
	}
	x := &Exchange{Instance: e.Instance, end: e, call: &pendingCall{done: make(chan error, 1), started: now()}}
	x.ctx, x.cancel = context.WithCancelCause(ctx)
	x.call.streams, x.call.limit = x.ctx, p.config.MaxBody
	envelope := ask.envelope(memory.KindCall)
	envelope.Total = uint64(len(ask.BodyBytes))
	if open {
		envelope.Total = memory.TotalUnknown
	}
	w, sent, err := e.begin(x.ctx, &envelope, ask.HeadBytes, ask.BodyBytes, open, x.call)
	if err != nil {
		x.cancel(err)
		return nil, err
	}
	x.id, x.writer = envelope.Call, w
	context.AfterFunc(x.ctx, x.giveUp)
	if rest := ask.BodyBytes[sent:]; len(rest) > 0 {
		_ = w.Write(x.ctx, rest, !open) // what comes of it is seen at the answer
	}
	return x, nil
}

// Write sends more of the body, and waits while its reader is behind. ErrNotWanted: the call has been answered, or is lost.
func (x *Exchange) Write(body []byte) error { return x.writer.Write(x.ctx, body, false) }

// Finish ends the body.
func (x *Exchange) Finish() error { return x.writer.Write(x.ctx, nil, true) }

// Abort ends the call: the body will not come, for this reason, and nobody wants the answer.
func (x *Exchange) Abort(why error) { x.cancel(why) }

// Close lets go of what is left of the answer. Its callee is told.
func (x *Exchange) Close() { x.cancel(errBodyClosed) }

// Answer waits for the answer, or its beginning; what follows is in the Inflow, which is nil when all is here. Once.
func (x *Exchange) Answer(answer *CallResponse) (*BodyReader, error) {
	var err error
	select {
	case err = <-x.call.done:
	case <-x.ctx.Done():
		return nil, context.Cause(x.ctx)
	}
	c := x.call
	if err != nil {
		c.done <- nil // for who gives up: there is nothing to release
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

// giveUp says that nobody wants the answer, or what is left of it. The callee is told, once.
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
	case !open: // it has just come to its end
		<-c.done
		c.message.Lease.Release()
	}
	if open {
		e.cancel(x.id)
	}
}
