// Package nearpath serves a function's calls and makes calls, over the nearest available path.
//
//	nearpath.Serve(func(ctx context.Context, req *nearpath.Request) (*nearpath.Response, error) {
//		rate, err := nearpath.Call(ctx, "currency", req.Body)
//		...
//	})
//
// Inside a nearpath instance (NEARPATH_DISPATCH is set) calls within one machine and one security domain go through shared memory:
// contract/memory.md and contract/dispatch.md. All other calls go over HTTP through the gateway, with the same API. A program thus
// also runs beside a plain OpenFaaS gateway or alone on a laptop. Response.Path is the path of a call.
//
// Code that calls functions with net/http needs one line: http.DefaultTransport = nearpath.Transport{}.
//
// A call returns a Response with the function's status, or an *Error with the function, the path and a Kind. A *PlatformError inside is
// an answer of the platform, with its reason (contract/reasons.toml). ErrDied means that the instance died before it answered: the call
// may have run. context.Canceled means that the caller has cancelled the call; the function is notified. If shared memory cannot
// take a call and nothing was sent, the call goes over HTTP automatically.
//
// CallStream and http.Handlers stream bodies; Gather makes several calls at once; Notify and Publish send events.
//
// No cgo, no dependencies. Linux on amd64 and arm64 for shared memory.
package nearpath
