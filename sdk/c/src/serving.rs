//! `np_serve`: calls of a handler in C.

use std::ffi::c_void;
use std::num::NonZeroUsize;

use nearpath::{Request, Response};

use crate::answer::CAnswer;
use crate::code::{CCode, MISUSE, OK};
use crate::endpoint::CEndpoint;
use crate::request::CRequest;

/// `np_handler`.
pub type CHandler =
    Option<unsafe extern "C" fn(*mut CEndpoint, *const CRequest, *mut CAnswer, *mut c_void)>;

/// `np_serving`.
#[repr(C)]
#[derive(Debug)]
pub struct CServing {
    size: usize,
    threads: u32,
    flags: u32,
}

const STREAM_FLAG: u32 = 1;

/// A handler function of C with its `user` pointer.
struct HandlerCall(
    unsafe extern "C" fn(*mut CEndpoint, *const CRequest, *mut CAnswer, *mut c_void),
    *mut c_void,
);

// SAFETY: the header says that with several threads both are used on all of them.
unsafe impl Sync for HandlerCall {}

impl HandlerCall {
    fn run_handler(&self, endpoint: *mut CEndpoint, request: Request) -> Response {
        let (request, mut answer) = (CRequest::new(request), CAnswer::new(endpoint));
        // SAFETY: C's function with C's `user`; endpoint, request and answer live until it returns.
        unsafe { (self.0)(endpoint, &request, &mut answer, self.1) };
        answer.into_response()
    }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_serve(
    endpoint: *mut CEndpoint,
    handler: CHandler,
    user: *mut c_void,
) -> CCode {
    // SAFETY: as the header says.
    unsafe { np_serve_with(endpoint, std::ptr::null(), handler, user) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_serve_with(
    endpoint: *mut CEndpoint,
    serving: *const CServing,
    handler: CHandler,
    user: *mut c_void,
) -> CCode {
    // SAFETY: NULL, or as the header says.
    let (of_c, serving) = unsafe { (endpoint.as_ref(), serving.as_ref()) };
    let (Some(of_c), Some(handler)) = (of_c, handler) else {
        return MISUSE;
    };
    if serving.is_some_and(|serving| serving.size < size_of::<CServing>()) {
        return of_c.record_misuse("np_serving.size is too small: begin with NP_SERVING");
    }
    if of_c.serving.replace(true) {
        return of_c.record_misuse("np_serve was called in a handler");
    }
    let before = of_c.current.get();
    // SAFETY: the box of `np_join`: no handler runs. It is used through the handler's reference only, until `serve` returns.
    let inner = unsafe { &mut *before };
    inner.set_streaming(serving.is_some_and(|serving| serving.flags & STREAM_FLAG != 0));
    let handling = HandlerCall(handler, user);
    let served = match serving
        .and_then(|serving| NonZeroUsize::new(serving.threads as usize))
        .filter(|count| count.get() > 1)
    {
        None => inner.serve_calls(|inner, request| {
            of_c.current.set(inner);
            handling.run_handler(endpoint, request)
        }),
        Some(threads) => {
            let handling = &handling;
            inner.serve_on(threads, move |inner, request| {
                let mut endpoint = CEndpoint::for_handler(inner);
                handling.run_handler(&mut endpoint, request)
            })
        }
    };
    of_c.current.set(before);
    of_c.serving.set(false);
    served.map_or_else(|error| of_c.record_error(&error), |()| OK)
}
