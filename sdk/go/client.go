package nearpath

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"nearpath.io/nearpath/internal/endpoint"
	"nearpath.io/nearpath/internal/memory"
	"nearpath.io/nearpath/internal/reason"
)

// DefaultMaxBody is the default maximum of a body, in bytes.
const DefaultMaxBody = 64 << 20

// Client makes calls. Call uses the zero Client.
type Client struct {
	// Gateway is the URL of the gateway for calls over HTTP; empty: GatewayURL.
	Gateway string
	// HTTP makes these calls; nil: this package's own client, with a pool of connections.
	HTTP *http.Client
	// MaxBody is the maximum, in bytes, of an answer over HTTP; 0: DefaultMaxBody.
	MaxBody int64
	// InPlace leaves the body of an answer in shared memory until Response.Release, without a copy. The program has to release every
	// response, or its slot is lost to the domain while the process lives. The functions of the domain share that memory: a
	// misbehaving one can change it while it is read.
	InPlace bool
	// ShmOnly makes calls fail with ErrNoPeer instead of using HTTP.
	ShmOnly bool
	// Idempotent permits calls to run twice: a call whose instance died is made once more.
	Idempotent bool
}

var standard Client

// Call calls a function with a payload. name may have a namespace: "name.namespace".
func Call(ctx context.Context, name string, body []byte) (*Response, error) {
	return standard.Do(ctx, name, &Request{Body: body})
}

// Do calls a function.
func Do(ctx context.Context, name string, req *Request) (*Response, error) {
	return standard.Do(ctx, name, req)
}

// Notify sends an event and returns without an answer.
func Notify(ctx context.Context, name string, body []byte) error {
	return standard.Notify(ctx, name, &Request{Body: body})
}

// Publish sends an event to one instance of each function of the domain that subscribes to the topic, on whichever
// node it runs. Outside a domain there are no subscribers.
func Publish(ctx context.Context, topic string, body []byte) (PublishReport, error) {
	return standard.Publish(ctx, topic, &Request{Body: body})
}

// PublishReport is the result of a published event. Sent counts the functions to which it was sent, one instance of each; Missed
// counts those whose instance could not take it.
type PublishReport = endpoint.PublishReport

// Do calls a function.
func (c *Client) Do(ctx context.Context, name string, req *Request) (*Response, error) {
	response, err := c.attempt(ctx, name, req)
	if err != nil && c.Idempotent && errors.Is(err, ErrDied) {
		return c.attempt(ctx, name, req)
	}
	return response, err
}

func (c *Client) attempt(ctx context.Context, name string, req *Request) (*Response, error) {
	if err := checkContext(ctx, name); err != nil {
		return nil, callError(name, "", err)
	}
	p := processMembership.endpointForCalls(ctx)
	if p != nil && p.AwaitRoute(ctx, name) {
		response, err := c.overShm(ctx, p, name, req, false)
		if elsewhere := endpoint.IsUnsent(err) || didNotRun(err); !elsewhere || c.ShmOnly {
			return response, callError(name, PathShm, err)
		}
	}
	if c.ShmOnly {
		return nil, callError(name, "", ErrNoPeer)
	}
	response, err := c.overHTTP(ctx, "/function/", name, req)
	if err == nil {
		response.Path, response.Obstacle = reportedPath(response.Header, p, name)
	}
	return response, callError(name, PathHTTP, err)
}

// didNotRun reports whether the callee's platform answered that the function has not run: the caller may use another path.
func didNotRun(err error) bool {
	platform := new(PlatformError)
	return errors.As(err, &platform) && platform.RetryIsSafe()
}

// Notify sends an event.
func (c *Client) Notify(ctx context.Context, name string, req *Request) error {
	if err := checkName(name); err != nil {
		return callError(name, "", err)
	}
	if p := processMembership.endpointForCalls(ctx); p != nil && p.AwaitRoute(ctx, name) {
		if _, err := c.overShm(ctx, p, name, req, true); !endpoint.IsUnsent(err) || c.ShmOnly {
			return callError(name, PathShm, err)
		}
	}
	if c.ShmOnly {
		return callError(name, "", ErrNoPeer)
	}
	_, err := c.sendAsync(ctx, name, req)
	return callError(name, PathHTTP, err)
}

// CallLater queues a call at the gateway. The gateway later sends the answer as a POST to callback, unless that is empty. CallLater
// returns the call's id (X-Call-Id), which the callback repeats, or an empty string if the gateway gives none.
func CallLater(ctx context.Context, name string, body []byte, callback string) (string, error) {
	return standard.CallLater(ctx, name, &Request{Body: body}, callback)
}

// CallLater queues a call at the gateway.
func (c *Client) CallLater(ctx context.Context, name string, req *Request, callback string) (string, error) {
	if err := checkName(name); err != nil {
		return "", callError(name, "", err)
	}
	if callback != "" {
		again := *req
		if again.Header = req.Header.Clone(); again.Header == nil {
			again.Header = http.Header{}
		}
		again.Header.Set("X-Callback-Url", callback)
		req = &again
	}
	id, err := c.sendAsync(ctx, name, req)
	return id, callError(name, PathHTTP, err)
}

func (c *Client) sendAsync(ctx context.Context, name string, req *Request) (string, error) {
	accepted, err := c.overHTTP(ctx, "/async-function/", name, req)
	if err != nil {
		return "", err
	}
	if accepted.Status >= 300 {
		return "", &PlatformError{Status: accepted.Status, Text: string(accepted.Body)}
	}
	return accepted.Header.Get("X-Call-Id"), nil
}

// Publish sends an event to one instance of each function that subscribes to the topic.
func (c *Client) Publish(ctx context.Context, topic string, req *Request) (PublishReport, error) {
	if !endpoint.IsTopic(topic) {
		return PublishReport{}, callError("", "", fmt.Errorf("%w: invalid topic %q: expected 1 to 65535 bytes without wildcards", errName, topic))
	}
	head, err := requestHead(req)
	p := processMembership.endpointForCalls(ctx)
	if err != nil || p == nil {
		return PublishReport{}, callError("", "", err)
	}
	return p.Publish(ctx, topic, c.callRequest(ctx, topic, req, head))
}

var errName = errors.New("nearpath: invalid function name: expected NAME or NAME.NAMESPACE")

const maxLabelBytes = 63

// checkName accepts NAME and NAME.NAMESPACE, each of a-z, 0-9 and inner dashes, beginning with a-z.
func checkName(name string) error {
	for label := range strings.SplitSeq(name, ".") {
		if len(label) > maxLabelBytes || label == "" || label[0] < 'a' || label[0] > 'z' || label[len(label)-1] == '-' ||
			strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return errName
		}
	}
	if strings.Count(name, ".") > 1 {
		return errName
	}
	return nil
}

// checkContext returns the error of a call before it begins.
func checkContext(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	return ctx.Err()
}

// shmExchange holds the request and the answer of one call.
type shmExchange struct {
	callRequest endpoint.CallRequest
	answer      endpoint.CallResponse
}

var exchanges = sync.Pool{New: func() any { return new(shmExchange) }}

func (c *Client) overShm(ctx context.Context, p *endpoint.Endpoint, name string, req *Request, event bool) (*Response, error) {
	head, err := requestHead(req)
	if err != nil {
		return nil, err
	}
	x := exchanges.Get().(*shmExchange)
	defer func() { *x = shmExchange{}; exchanges.Put(x) }()
	c.fillCallRequest(&x.callRequest, ctx, name, req, head)
	x.callRequest.Event = event
	if err := p.Call(ctx, &x.callRequest, &x.answer); err != nil || event {
		return nil, err
	}
	return response(&x.answer)
}

func (c *Client) callRequest(ctx context.Context, name string, req *Request, head []byte) *endpoint.CallRequest {
	callRequest := new(endpoint.CallRequest)
	c.fillCallRequest(callRequest, ctx, name, req, head)
	return callRequest
}

// fillCallRequest fills in a call, with the deadline and the trace of the request to which ctx belongs.
func (c *Client) fillCallRequest(callRequest *endpoint.CallRequest, ctx context.Context, name string, req *Request, head []byte) {
	*callRequest = endpoint.CallRequest{Function: name, HeadBytes: head, BodyBytes: req.Body, IsInPlace: c.InPlace}
	if deadline, ok := ctx.Deadline(); ok {
		callRequest.Deadline = endpoint.At(deadline)
	}
	t := traceOf(ctx, req.Header)
	callRequest.Trace, callRequest.Span = t.id, t.span
}

func response(answer *endpoint.CallResponse) (*Response, error) {
	r := &Response{Status: int(answer.Status), Body: answer.BodyBytes, Path: PathShm, Instance: answer.Instance}
	if r.Status == 0 {
		r.Status = http.StatusOK
	}
	if answer.InPlace() {
		leased := *answer
		r.leased = &leased
	}
	if answer.Has(memory.FlagPlatform) {
		defer r.Release()
		return nil, &PlatformError{r.Status, reason.Name(answer.Reason), string(answer.BodyBytes)}
	}
	header, err := readHead(answer.HeadBytes, nil)
	if err != nil {
		r.Release()
		return nil, ErrTruncated
	}
	r.Header = header
	return r, nil
}
