//! `np_party`: joining, leaving, serving, and the last error.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char, c_void};
use std::num::NonZeroUsize;

use nearpath::blocking::ThreadEndpoint;
use nearpath::{BodyDraft, Error, Request, Response};

use crate::answer::CAnswer;
use crate::code::{self, CCode, MISUSE, OK};
use crate::options::BadOptions;
use crate::request::CRequest;

/// `np_party`. C uses one pointer to it, also while a handler runs. So nothing is borrowed as a whole, and `current` is the
/// reference through which the endpoint may be used now.
#[derive(Debug)]
pub struct CEndpoint {
    current: Cell<*mut ThreadEndpoint>,
    serving: Cell<bool>,
    error: RefCell<CString>,
    retry: Cell<bool>,
}

/// `np_handler`.
pub type CHandler =
    Option<unsafe extern "C" fn(*mut CEndpoint, *const CRequest, *mut CAnswer, *mut c_void)>;

impl CEndpoint {
    /// Creates an endpoint for a running handler.
    fn for_handler(party: *mut ThreadEndpoint) -> Self {
        let (error, retry) = (RefCell::default(), Cell::new(false));
        Self {
            current: Cell::new(party),
            serving: Cell::new(true),
            error,
            retry,
        }
    }

    /// Runs `work` with the endpoint and records a failure.
    pub(crate) fn with_current<T>(
        &self,
        work: impl FnOnce(&mut ThreadEndpoint) -> Result<T, Error>,
    ) -> Result<T, CCode> {
        // SAFETY: `current` is the box of `np_join`, or the reference that the running handler was given and does not use
        // itself; either lives, and nothing else uses it, because an endpoint stays on one thread and `work` is ours: it calls no C.
        let party = unsafe { &mut *self.current.get() };
        work(party).map_err(|error| self.record_error(&error))
    }

    /// Returns memory for a body; none when the process is out of memory.
    pub(crate) fn draft_body(&self, bytes: usize) -> Option<BodyDraft> {
        let draft = self
            .with_current(|party| Ok(party.draft_body_in_slot(bytes)))
            .ok()?;
        draft.or_else(|| private_draft(bytes))
    }

    pub(crate) fn record_error(&self, error: &Error) -> CCode {
        self.set_error(&error.to_string(), error.retry_is_safe());
        code::error_code(error)
    }

    pub(crate) fn record_misuse(&self, what: &str) -> CCode {
        self.set_error(what, true);
        MISUSE
    }

    pub(crate) fn record_bad_options(&self, why: BadOptions) -> CCode {
        match why {
            BadOptions::Misuse(what) => self.record_misuse(what),
            BadOptions::Error(error) => self.record_error(&error),
        }
    }

    fn set_error(&self, text: &str, retry: bool) {
        let text = text.replace('\0', " ");
        self.error.replace(CString::new(text).unwrap_or_default());
        self.retry.set(retry);
    }
}

/// Allocates zeros: bytes that C does not write show no earlier content.
fn private_draft(bytes: usize) -> Option<BodyDraft> {
    let mut own = Vec::new();
    own.try_reserve_exact(bytes).ok()?;
    own.resize(bytes, 0);
    Some(BodyDraft::from_vec(own))
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub extern "C" fn np_join() -> *mut CEndpoint {
    let party = CEndpoint::for_handler(Box::into_raw(Box::new(ThreadEndpoint::default())));
    party.serving.set(false);
    Box::into_raw(Box::new(party))
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_leave(party: *mut CEndpoint) {
    if party.is_null() {
        return;
    }
    // SAFETY: from `np_join` and not given back; no handler runs, so `current` is the box of `np_join`.
    unsafe {
        let party = Box::from_raw(party);
        drop(Box::from_raw(party.current.get()));
    }
}

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
    fn run_handler(&self, party: *mut CEndpoint, request: Request) -> Response {
        let (request, mut answer) = (CRequest::new(request), CAnswer::new(party));
        // SAFETY: C's function with C's `user`; endpoint, request and answer live until it returns.
        unsafe { (self.0)(party, &request, &mut answer, self.1) };
        answer.into_response()
    }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_serve(
    party: *mut CEndpoint,
    handler: CHandler,
    user: *mut c_void,
) -> CCode {
    // SAFETY: as the header says.
    unsafe { np_serve_with(party, std::ptr::null(), handler, user) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_serve_with(
    party: *mut CEndpoint,
    how: *const CServing,
    handler: CHandler,
    user: *mut c_void,
) -> CCode {
    // SAFETY: NULL, or as the header says.
    let (of_c, how) = unsafe { (party.as_ref(), how.as_ref()) };
    let (Some(of_c), Some(handler)) = (of_c, handler) else {
        return MISUSE;
    };
    if how.is_some_and(|how| how.size < size_of::<CServing>()) {
        return of_c.record_misuse("np_serving.size is too small: begin with NP_SERVING");
    }
    if of_c.serving.replace(true) {
        return of_c.record_misuse("np_serve was called in a handler");
    }
    let before = of_c.current.get();
    // SAFETY: the box of `np_join`: no handler runs. It is used through the handler's reference only, until `serve` returns.
    let inner = unsafe { &mut *before };
    inner.set_streaming(how.is_some_and(|how| how.flags & STREAM_FLAG != 0));
    let handling = HandlerCall(handler, user);
    let served = match how
        .and_then(|how| NonZeroUsize::new(how.threads as usize))
        .filter(|count| count.get() > 1)
    {
        None => inner.serve_calls(|inner, request| {
            of_c.current.set(inner);
            handling.run_handler(party, request)
        }),
        Some(threads) => {
            let handling = &handling;
            inner.serve_on(threads, move |inner, request| {
                let mut party = CEndpoint::for_handler(inner);
                handling.run_handler(&mut party, request)
            })
        }
    };
    of_c.current.set(before);
    of_c.serving.set(false);
    served.map_or_else(|error| of_c.record_error(&error), |()| OK)
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_error(party: *const CEndpoint) -> *const c_char {
    // SAFETY: NULL or from `np_join`.
    let party = unsafe { party.as_ref() };
    party.map_or(c"the party is NULL".as_ptr(), |party| {
        party.error.borrow().as_ptr()
    })
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_retry_is_safe(party: *const CEndpoint) -> bool {
    // SAFETY: NULL or from `np_join`.
    unsafe { party.as_ref() }.is_some_and(|party| party.retry.get())
}
