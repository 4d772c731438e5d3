// Package nearpath lets a function take calls and make them, over the nearest path there is.
//
//	nearpath.Serve(func(ctx context.Context, req *nearpath.Request) (*nearpath.Response, error) {
//		rate, err := nearpath.Call(ctx, "currency", req.Body)
//		...
//	})
//
// Inside a nearpath instance (NEARPATH_DISPATCH is set) calls between functions of one machine and one security domain go through
// shared memory: contract/memory.md and contract/dispatch.md. All others, and all of them elsewhere, go over HTTP through the
// gateway, with the same API; so a program also runs beside a plain OpenFaaS gateway or alone on a laptop. Response.Path says
// which way a call took.
//
// Code that calls functions with net/http takes part with one line: http.DefaultTransport = nearpath.Transport{}.
//
// What a call comes to: a Response with the function's own status, whatever it is; or an *Error, which says which function, which path
// and why, by a Kind. A *PlatformError inside is an answer that the platform made, with its reason (contract/reasons.toml). ErrDied means
// that the instance died before it had answered: the call may have run. context.Canceled means that nobody waits any more; the function is
// told. When shared memory cannot take a call, and nothing was sent, HTTP is tried by itself.
//
// CallStream and http.Handlers read and write bodies as they come; Gather makes several calls at once; Notify and Publish send events.
//
// No cgo, no dependencies. Linux on amd64 and arm64 for shared memory.
package nearpath
