package nearpath

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"nearpath.io/nearpath/internal/memory"
	"nearpath.io/nearpath/internal/party"
	"nearpath.io/nearpath/internal/reason"
)

// Stream is an answer whose body is read as it comes. Its writer waits while it is not read. Close it: that tells a callee that has
// more to say that nobody listens.
type Stream struct {
	// Status is the HTTP status.
	Status int
	// Header holds the fields; nil when there are none.
	Header http.Header
	// Length is the bytes of the whole body, as its sender said; -1 when it did not know.
	Length int64
	// Body ends with io.EOF, or with an *Error when the answer was broken off.
	Body io.ReadCloser
	// Path is the way that the call took.
	Path Path
	// NotNearer is what stood against a nearer path.
	NotNearer string
	// Instance is the one that answered, 0 when unknown.
	Instance uint64
}

// CallStream calls a function with a body that is sent as it can be read, and returns when the answer begins, which may be before the
// body has ended. Without a body req.Body is sent; req may be nil. A body that fails ends the call; it is closed if it is an io.Closer.
func CallStream(ctx context.Context, name string, req *Request, body io.Reader) (*Stream, error) {
	return standard.Stream(ctx, name, req, body)
}

// Stream is CallStream.
func (c *Client) Stream(ctx context.Context, name string, req *Request, body io.Reader) (*Stream, error) {
	if err := checkContext(ctx, name); err != nil {
		return nil, callError(name, "", err)
	}
	if req == nil {
		req = &Request{}
	}
	if body == nil && len(req.Body) > pieceSize {
		body = bytes.NewReader(req.Body) // the answer may have to be read before all of it can go
	}
	p := home.endpointForCalls(ctx)
	if p != nil && p.AwaitRoute(ctx, name) {
		stream, err := c.streamOverShm(ctx, p, name, req, body)
		elsewhere := party.IsUnsent(err) || body == nil && didNotRun(err)
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

func (c *Client) streamOverShm(ctx context.Context, p *party.Endpoint, name string, req *Request, body io.Reader) (*Stream, error) {
	head, err := requestHead(req)
	if err != nil {
		return nil, err
	}
	ask := c.ask(ctx, name, req, head)
	if body != nil {
		ask.BodyBytes = nil
	}
	x, err := p.Open(ctx, ask, body != nil)
	if err != nil {
		return nil, err
	}
	if body != nil {
		go sendBody(x, body)
	}
	var answer party.CallResponse
	rest, err := x.Answer(&answer)
	if err != nil {
		x.Close()
		return nil, err
	}
	return newStream(name, x, &answer, rest)
}

const pieceSize = 65_536 - memory.EnvelopeSize

// sendBody sends a body as it comes.
func sendBody(x *party.Exchange, body io.Reader) {
	if closer, ok := body.(io.Closer); ok {
		defer closer.Close()
	}
	piece := make([]byte, pieceSize)
	for {
		n, err := body.Read(piece)
		if n > 0 && x.Write(piece[:n]) != nil {
			return // answered, or lost: the answer says which
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

func newStream(name string, x *party.Exchange, answer *party.CallResponse, rest *party.BodyReader) (*Stream, error) {
	body, length := &streamBody{name: name, exchange: x}, int64(len(answer.BodyBytes))
	if body.Reader = io.Reader(strings.NewReader(string(answer.BodyBytes))); rest != nil {
		body.Reader, length = rest, -1
		if rest.Total != memory.TotalUnknown {
			length = int64(rest.Total)
		}
	}
	if answer.Has(memory.FlagPlatform) {
		text, _ := io.ReadAll(io.LimitReader(body, longestText))
		x.Close()
		return nil, &PlatformError{int(answer.Status), reason.Name(answer.Reason), string(text)}
	}
	header, err := readHead(answer.HeadBytes, nil)
	if err != nil {
		x.Close()
		return nil, ErrCut
	}
	status := int(answer.Status)
	if status == 0 {
		status = http.StatusOK
	}
	return &Stream{Status: status, Header: header, Length: length, Body: body, Path: PathShm, Instance: answer.Instance}, nil
}

// longestText is the most of a platform's answer that is kept for people.
const longestText = 4096

type streamBody struct {
	io.Reader
	name     string
	exchange *party.Exchange
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

func (c *Client) streamOverHTTP(ctx context.Context, p *party.Endpoint, name string, req *Request, body io.Reader) (*Stream, error) {
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
		text, _ := io.ReadAll(io.LimitReader(answer.Body, longestText))
		return nil, &PlatformError{answer.StatusCode, reason, string(text)}
	}
	path, obstacle := reportedPath(answer.Header, p, name)
	return &Stream{
		Status: answer.StatusCode, Header: answer.Header, Length: answer.ContentLength, Body: answer.Body, Path: path, NotNearer: obstacle,
	}, nil
}
