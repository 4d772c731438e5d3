package nearpath

import (
	"errors"
	"net/http"
	"net/textproto"
	"strings"

	"nearpath.io/nearpath/internal/endpoint"
	"nearpath.io/nearpath/internal/memory"
)

// Request is a call.
type Request struct {
	// Method is POST when empty.
	Method string
	// Path is the part of the URL after the function's name, with the query; "/" when empty.
	Path string
	// Header holds the fields; nil when there are none.
	Header http.Header
	// Body is the payload.
	Body []byte
	// Caller is the calling function; empty: unknown. Set by Serve.
	Caller string
	// Topic is the topic of a published event. Set by Serve; an http.Handler finds it in X-Topic.
	Topic string
	// Event is true for an event, which has no answer. Set by Serve.
	Event bool
}

// Response is an answer.
type Response struct {
	// Status is 200 when zero.
	Status int
	// Header holds the fields; nil when there are none.
	Header http.Header
	// Body is the payload.
	Body []byte
	// Path is the path of the call, as the platform reports it. Set by Call.
	Path Path
	// Obstacle is the obstacle to a nearer path, a name that `nearpath paths` explains. Set by Call.
	Obstacle string
	// Instance is the answering instance, 0 if unknown. Set by Call.
	Instance uint64

	leased *endpoint.CallResponse
}

// Release frees the slot with Body, if the Client's InPlace is set. Body is invalid afterwards.
func (r *Response) Release() {
	if r.leased != nil {
		r.leased.Release()
		r.leased, r.Body = nil, nil
	}
}

var errHead = errors.New("nearpath: the header has an invalid field, or more than 256 fields or 65536 bytes")

// plainHead is the head of a POST to "/" without fields.
var plainHead = mustHead(":method", http.MethodPost, ":path", "/")

func mustHead(fields ...string) []byte {
	var head []byte
	for k := 0; k < len(fields); k += 2 {
		head, _ = memory.AppendField(head, fields[k], fields[k+1])
	}
	return head
}

func requestHead(req *Request) ([]byte, error) {
	method, path := req.Method, req.Path
	if method == "" {
		method = http.MethodPost
	}
	if path == "" {
		path = "/"
	}
	if method == http.MethodPost && path == "/" && len(req.Header) == 0 {
		return plainHead, nil
	}
	head, err := memory.AppendField(make([]byte, 0, 256), ":method", method)
	if err == nil {
		head, err = memory.AppendField(head, ":path", path)
	}
	if err != nil {
		return nil, errHead
	}
	return appendHeader(head, req.Header, 2)
}

func appendHeader(head []byte, header http.Header, fields int) ([]byte, error) {
	for name, values := range header {
		if hopByHop(name) {
			continue
		}
		name := strings.ToLower(name)
		for _, value := range values {
			var err error
			head, err = memory.AppendField(head, name, value)
			if fields++; err != nil || fields > memory.MaxFields || len(head) > memory.MaxHead {
				return nil, errHead
			}
		}
	}
	return head, nil
}

// callerField names the calling function, topicField the topic of an event. Only the platform sets fields that begin with
// platformPrefix.
const (
	callerField    = "X-Nearpath-Caller"
	topicField     = "X-Nearpath-Topic"
	platformPrefix = "x-nearpath-"
)

// isForged reports whether a caller sent a field that only the platform sets. The gateway, which has no name, is the platform.
func isForged(name string, req *Request) bool {
	return req != nil && req.Caller != "" && (strings.HasPrefix(name, platformPrefix) || name == "x-openfaas-internal")
}

// readHead reads a private copy of a head. The default of a request is POST to "/". The header of a request names its Caller.
func readHead(head []byte, req *Request) (http.Header, error) {
	var header http.Header
	err := memory.EachField(head, func(name, value []byte) {
		switch {
		case string(name) == ":method" && req != nil:
			req.Method = intern(value)
		case string(name) == ":path" && req != nil:
			req.Path = intern(value)
		case string(name) == ":name" && req != nil:
			req.Topic = string(value)
		case name[0] != ':' && !hopByHop(string(name)) && !isForged(string(name), req):
			if header == nil {
				header = http.Header{}
			}
			key := textproto.CanonicalMIMEHeaderKey(string(name))
			header[key] = append(header[key], string(value))
		}
	})
	if req != nil && req.Caller != "" {
		if header == nil {
			header = http.Header{}
		}
		header[callerField] = []string{req.Caller}
	}
	return header, err
}

// intern saves allocating the most frequent values.
func intern(value []byte) string {
	switch string(value) {
	case http.MethodPost:
		return http.MethodPost
	case http.MethodGet:
		return http.MethodGet
	case "/":
		return "/"
	}
	return string(value)
}

// hopByHop reports whether a field describes one connection, or the framing of a message.
func hopByHop(name string) bool {
	switch len(name) {
	case 2, 7, 10, 14, 16, 17, 18, 19: // lengths of the names below
	default:
		return false
	}
	switch strings.ToLower(name) {
	case "te", "trailer", "upgrade", "connection", "keep-alive", "content-length", "proxy-connection", "transfer-encoding",
		"proxy-authenticate", "proxy-authorization":
		return true
	}
	return false
}
