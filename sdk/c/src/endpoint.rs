//! `np_endpoint`: joining, leaving, and the last error.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};

use nearpath::blocking::ThreadEndpoint;
use nearpath::{BodyDraft, Error};

use crate::code::{self, CCode, MISUSE};
use crate::options::BadOptions;

/// `np_endpoint`. C uses one pointer to it, also while a handler runs. So nothing is borrowed as a whole, and `current` is the
/// reference through which the endpoint may be used now.
#[derive(Debug)]
pub struct CEndpoint {
    pub(crate) current: Cell<*mut ThreadEndpoint>,
    pub(crate) serving: Cell<bool>,
    error: RefCell<CString>,
    retry: Cell<bool>,
}

impl CEndpoint {
    /// Creates an endpoint for a running handler.
    pub(crate) fn for_handler(endpoint: *mut ThreadEndpoint) -> Self {
        let (error, retry) = (RefCell::default(), Cell::new(false));
        Self {
            current: Cell::new(endpoint),
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
        let endpoint = unsafe { &mut *self.current.get() };
        work(endpoint).map_err(|error| self.record_error(&error))
    }

    /// Returns memory for a body; none when the process is out of memory.
    pub(crate) fn draft_body(&self, bytes: usize) -> Option<BodyDraft> {
        let draft = self
            .with_current(|endpoint| Ok(endpoint.draft_body_in_slot(bytes)))
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
    let endpoint = CEndpoint::for_handler(Box::into_raw(Box::new(ThreadEndpoint::default())));
    endpoint.serving.set(false);
    Box::into_raw(Box::new(endpoint))
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_leave(endpoint: *mut CEndpoint) {
    if endpoint.is_null() {
        return;
    }
    // SAFETY: from `np_join` and not given back; no handler runs, so `current` is the box of `np_join`.
    unsafe {
        let endpoint = Box::from_raw(endpoint);
        drop(Box::from_raw(endpoint.current.get()));
    }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_error(endpoint: *const CEndpoint) -> *const c_char {
    // SAFETY: NULL or from `np_join`.
    let endpoint = unsafe { endpoint.as_ref() };
    endpoint.map_or(c"the endpoint is NULL".as_ptr(), |endpoint| {
        endpoint.error.borrow().as_ptr()
    })
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_retry_is_safe(endpoint: *const CEndpoint) -> bool {
    // SAFETY: NULL or from `np_join`.
    unsafe { endpoint.as_ref() }.is_some_and(|endpoint| endpoint.retry.get())
}
