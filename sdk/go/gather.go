package nearpath

import (
	"context"
	"sync"
)

// GatherCall is one call of Gather.
type GatherCall struct {
	// Function is the called function.
	Function string
	// Body is the payload, unless Request is set.
	Body []byte
	// Request is a call with method, path and header.
	Request *Request
}

// GatherOutcome is the result of one call of Gather.
type GatherOutcome struct {
	Response *Response
	Err      error
}

// Gather makes several calls at once and waits for all of them. The outcomes are in the order of the calls; a failed call does not affect the
// others. The end of ctx cancels all calls.
func Gather(ctx context.Context, calls ...GatherCall) []GatherOutcome {
	return standard.Gather(ctx, calls...)
}

// Gather makes several calls at once and waits for all of them.
func (c *Client) Gather(ctx context.Context, calls ...GatherCall) []GatherOutcome {
	outcomes := make([]GatherOutcome, len(calls))
	var open sync.WaitGroup
	for k := range calls {
		open.Go(func() {
			req := calls[k].Request
			if req == nil {
				req = &Request{Body: calls[k].Body}
			}
			outcomes[k].Response, outcomes[k].Err = c.Do(ctx, calls[k].Function, req)
		})
	}
	open.Wait()
	return outcomes
}
