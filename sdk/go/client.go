package nearpath

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"nearpath.io/nearpath/internal/memory"
	"nearpath.io/nearpath/internal/party"
	"nearpath.io/nearpath/internal/reason"
)

// DefaultMaxBody is the most bytes of a body, unless told otherwise.
const DefaultMaxBody = 64 << 20

// Client makes calls. The zero Client is what Call uses.
type Client struct {
	// Gateway is where calls go over HTTP; empty: see GatewayURL.
	Gateway string
	// HTTP makes these calls; nil: a client of its own with a pool of connections.
	HTTP *http.Client
	// MaxBody bounds an answer that comes over HTTP; 0: DefaultMaxBody.
	MaxBody int64
	// InPlace leaves the body of an answer in shared memory until Response.Release: nothing is copied. Every response has to be
	// released, or its slot is lost to the domain while the process lives. The functions of the domain share that memory: one that
	// breaks the rules can change it while it is read.
	InPlace bool
	// ShmOnly makes calls fail with ErrNoPeer instead of going over HTTP.
	ShmOnly bool
	// Idempotent says that calls may run twice: one whose instance died is made once more.
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

// Notify sends an event: it returns when it was handed over, and no answer comes.
func Notify(ctx context.Context, name string, body []byte) error {
	return standard.Notify(ctx, name, &Request{Body: body})
}

// Publish sends an event to one instance of each function of the domain that subscribes to the topic, and says to how many. Outside a
// domain nobody subscribes.
func Publish(ctx context.Context, topic string, body []byte) (Published, error) {
	return standard.Publish(ctx, topic, &Request{Body: body})
}

// Published is what became of an event for a topic: Sent counts the functions to one of whose instances it went, Missed those whose
// instances had no room for it.
type Published = party.PublishOutcome

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
	p := home.endpointForCalls(ctx)
	if p != nil && p.AwaitRoute(ctx, name) {
		response, err := c.overShm(ctx, p, name, req, false)
		if elsewhere := party.IsUnsent(err) || didNotRun(err); !elsewhere || c.ShmOnly {
			return response, callError(name, PathShm, err)
		}
	}
	if c.ShmOnly {
		return nil, callError(name, "", ErrNoPeer)
	}
	response, err := c.overHTTP(ctx, "/function/", name, req)
	if err == nil {
		response.Path, response.NotNearer = reportedPath(response.Header, p, name)
	}
	return response, callError(name, PathHTTP, err)
}

// didNotRun says whether the callee's platform answered that its code has not seen the call: another way may be tried.
func didNotRun(err error) bool {
	platform := new(PlatformError)
	return errors.As(err, &platform) && platform.RetryIsSafe()
}

// Notify sends an event.
func (c *Client) Notify(ctx context.Context, name string, req *Request) error {
	if err := checkName(name); err != nil {
		return callError(name, "", err)
	}
	if p := home.endpointForCalls(ctx); p != nil && p.AwaitRoute(ctx, name) {
		if _, err := c.overShm(ctx, p, name, req, true); !party.IsUnsent(err) || c.ShmOnly {
			return callError(name, PathShm, err)
		}
	}
	if c.ShmOnly {
		return callError(name, "", ErrNoPeer)
	}
	_, err := c.sendAsync(ctx, name, req)
	return callError(name, PathHTTP, err)
}

// CallLater has a function called later: the gateway queues the call, and sends the answer as a POST to callback, unless that is
// empty. It returns the call's id (X-Call-Id), by which the callback is recognised, or nothing when the gateway gives none.
func CallLater(ctx context.Context, name string, body []byte, callback string) (string, error) {
	return standard.CallLater(ctx, name, &Request{Body: body}, callback)
}

// CallLater has a function called later.
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

// Publish sends an event to those who subscribe.
func (c *Client) Publish(ctx context.Context, topic string, req *Request) (Published, error) {
	if !party.IsTopic(topic) {
		return Published{}, callError("", "", fmt.Errorf("%w: %q is no topic: it is empty, too long or has a wildcard", errName, topic))
	}
	head, err := requestHead(req)
	p := home.endpointForCalls(ctx)
	if err != nil || p == nil {
		return Published{}, callError("", "", err)
	}
	return p.Publish(ctx, topic, c.ask(ctx, topic, req, head))
}

var errName = errors.New("nearpath: no function can have that name")

const longestLabel = 63

// checkName allows NAME and NAME.NAMESPACE, each of lower-case letters, digits and inner dashes, with a letter in front.
func checkName(name string) error {
	for label := range strings.SplitSeq(name, ".") {
		if len(label) > longestLabel || label == "" || label[0] < 'a' || label[0] > 'z' || label[len(label)-1] == '-' ||
			strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return errName
		}
	}
	if strings.Count(name, ".") > 1 {
		return errName
	}
	return nil
}

// checkContext is why a call is not even begun.
func checkContext(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	return ctx.Err()
}

// shmExchange is what one call needs.
type shmExchange struct {
	newCallRequest    party.CallRequest
	answer party.CallResponse
}

var exchanges = sync.Pool{New: func() any { return new(shmExchange) }}

func (c *Client) overShm(ctx context.Context, p *party.Endpoint, name string, req *Request, event bool) (*Response, error) {
	head, err := requestHead(req)
	if err != nil {
		return nil, err
	}
	x := exchanges.Get().(*shmExchange)
	defer func() { *x = shmExchange{}; exchanges.Put(x) }()
	c.fillCallRequest(&x.newCallRequest, ctx, name, req, head)
	x.newCallRequest.Event = event
	if err := p.Call(ctx, &x.newCallRequest, &x.answer); err != nil || event {
		return nil, err
	}
	return response(&x.answer)
}

func (c *Client) ask(ctx context.Context, name string, req *Request, head []byte) *party.CallRequest {
	ask := new(party.CallRequest)
	c.fillCallRequest(ask, ctx, name, req, head)
	return ask
}

// fillCallRequest has the deadline and the trace go on from the request that ctx belongs to.
func (c *Client) fillCallRequest(ask *party.CallRequest, ctx context.Context, name string, req *Request, head []byte) {
	*ask = party.CallRequest{Function: name, HeadBytes: head, BodyBytes: req.Body, IsInPlace: c.InPlace}
	if deadline, ok := ctx.Deadline(); ok {
		ask.Deadline = party.At(deadline)
	}
	t := traceOf(ctx, req.Header)
	ask.Trace, ask.Span = t.id, t.span
}

func response(answer *party.CallResponse) (*Response, error) {
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
		return nil, ErrCut
	}
	r.Header = header
	return r, nil
}
