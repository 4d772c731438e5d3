//! `np_party`: joining, leaving, and the last error.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};

use nearpath::blocking::ThreadEndpoint;
use nearpath::{BodyDraft, Error};

use crate::code::{self, CCode, MISUSE};
use crate::options::BadOptions;

/// `np_party`. C uses one pointer to it, also while a handler runs. So nothing is borrowed as a whole, and `current` is the
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
    pub(crate) fn for_handler(party: *mut ThreadEndpoint) -> Self {
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
