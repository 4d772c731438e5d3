package nearpath

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"nearpath.io/nearpath/internal/endpoint"
	"nearpath.io/nearpath/internal/memory"
	"nearpath.io/nearpath/internal/reason"
)

// Stream is an answer with a streamed body. Its writer waits while it is not read. Close it: that notifies a callee which has not
// finished its answer.
type Stream struct {
	// Status is the HTTP status.
	Status int
	// Header holds the fields; nil when there are none.
	Header http.Header
	// Length is the length of the whole body in bytes, according to its sender; -1 if unknown.
	Length int64
	// Body ends with io.EOF, or with an *Error if the callee aborted the answer.
	Body io.ReadCloser
	// Path is the path of the call.
	Path Path
	// Obstacle is the obstacle to a nearer path.
	Obstacle string
	// Instance is the answering instance, 0 if unknown.
	Instance uint64
}

// CallStream calls a function with a streamed body, and returns when the answer begins, possibly before the body has ended. Without a
// body it sends req.Body; req may be nil. A body that fails ends the call; CallStream closes a body that is an io.Closer.
func CallStream(ctx context.Context, name string, req *Request, body io.Reader) (*Stream, error) {
	return standard.Stream(ctx, name, req, body)
}

// Stream is CallStream with this Client.
func (c *Client) Stream(ctx context.Context, name string, req *Request, body io.Reader) (*Stream, error) {
	if err := checkContext(ctx, name); err != nil {
		return nil, callError(name, "", err)
	}
	if req == nil {
		req = &Request{}
	}
	if body == nil && len(req.Body) > pieceSize {
		body = bytes.NewReader(req.Body) // the caller may have to read the answer before all of it can be sent
	}
	p := processMembership.endpointForCalls(ctx)
	if p != nil && p.AwaitRoute(ctx, name) {
		stream, err := c.streamOverShm(ctx, p, name, req, body)
		elsewhere := endpoint.IsUnsent(err) || body == nil && didNotRun(err)
		if !elsewhere || c.ShmOnly {
			return stream, callError(name, PathShm, err)
		}
	}
	if c.ShmOnly {
		return nil, callError(name, "", ErrNoPeer)
	}
	stream, err := c.streamOverHTTP(ctx, p, name, req, body)
	return stream, callError(name, PathHTTP, err)
}

func (c *Client) streamOverShm(ctx context.Context, p *endpoint.Endpoint, name string, req *Request, body io.Reader) (*Stream, error) {
	head, err := requestHead(req)
	if err != nil {
		return nil, err
	}
	callRequest := c.callRequest(ctx, name, req, head)
	if body != nil {
		callRequest.BodyBytes = nil
	}
	x, err := p.Open(ctx, callRequest, body != nil)
	if err != nil {
		return nil, err
	}
	if body != nil {
		go sendBody(x, body)
	}
	var answer endpoint.CallResponse
	rest, err := x.Answer(&answer)
	if err != nil {
		x.Close()
		return nil, err
	}
	return newStream(name, x, &answer, rest)
}

const pieceSize = 65_536 - memory.EnvelopeSize

// sendBody streams a body.
func sendBody(x *endpoint.Exchange, body io.Reader) {
	if closer, ok := body.(io.Closer); ok {
		defer closer.Close()
	}
	piece := make([]byte, pieceSize)
	for {
		n, err := body.Read(piece)
		if n > 0 && x.Write(piece[:n]) != nil {
			return // answered or lost: Answer returns which
		}
		switch {
		case err == io.EOF:
			_ = x.Finish()
			return
		case err != nil:
			x.Abort(fmt.Errorf("the body of the call failed: %w", err))
			return
		}
	}
}

func newStream(name string, x *endpoint.Exchange, answer *endpoint.CallResponse, rest *endpoint.BodyReader) (*Stream, error) {
	body, length := &streamBody{name: name, exchange: x}, int64(len(answer.BodyBytes))
	if body.Reader = io.Reader(strings.NewReader(string(answer.BodyBytes))); rest != nil {
		body.Reader, length = rest, -1
		if rest.Total != memory.TotalUnknown {
			length = int64(rest.Total)
		}
	}
	if answer.Has(memory.FlagPlatform) {
		text, _ := io.ReadAll(io.LimitReader(body, maxTextBytes))
		x.Close()
		return nil, &PlatformError{int(answer.Status), reason.Name(answer.Reason), string(text)}
	}
	header, err := readHead(answer.HeadBytes, nil)
	if err != nil {
		x.Close()
		return nil, ErrTruncated
	}
	status := int(answer.Status)
	if status == 0 {
		status = http.StatusOK
	}
	return &Stream{Status: status, Header: header, Length: length, Body: body, Path: PathShm, Instance: answer.Instance}, nil
}

// maxTextBytes is the maximum of bytes that are kept of a platform's message.
const maxTextBytes = 4096

type streamBody struct {
	io.Reader
	name     string
	exchange *endpoint.Exchange
}

// Read implements io.Reader.
func (b *streamBody) Read(to []byte) (int, error) {
	n, err := b.Reader.Read(to)
	if err != nil && err != io.EOF {
		err = callError(b.name, PathShm, err)
	}
	if err != nil {
		b.exchange.Close()
	}
	return n, err
}

// Close implements io.Closer.
func (b *streamBody) Close() error {
	b.exchange.Close()
	return nil
}

func (c *Client) streamOverHTTP(ctx context.Context, p *endpoint.Endpoint, name string, req *Request, body io.Reader) (*Stream, error) {
	if body == nil {
		body = bytes.NewReader(req.Body)
	}
	out, err := c.httpRequest(ctx, "/function/"+name, req, body)
	if err != nil {
		return nil, err
	}
	answer, err := c.httpClient().Do(out)
	if err != nil {
		return nil, err
	}
	if reason := answer.Header.Get("X-Nearpath-Reason"); reason != "" {
		defer answer.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(answer.Body, maxTextBytes))
		return nil, &PlatformError{answer.StatusCode, reason, string(text)}
	}
	path, obstacle := reportedPath(answer.Header, p, name)
	return &Stream{
		Status: answer.StatusCode, Header: answer.Header, Length: answer.ContentLength, Body: answer.Body, Path: path, Obstacle: obstacle,
	}, nil
}
