//! `np_party`: joining, leaving, serving, and why something failed.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char, c_void};
use std::num::NonZeroUsize;

use nearpath::blocking::Party;
use nearpath::{Draft, Error, Request, Response};

use crate::answer::AnswerOfC;
use crate::ask::NoAsk;
use crate::code::{self, Code, MISUSE, OK};
use crate::request::RequestOfC;

/// `np_party`. C has one pointer to it, also while a handler runs: so nothing here is borrowed as a whole, and `current` says
/// through which reference the party may be used at this moment.
#[derive(Debug)]
pub struct PartyOfC {
    current: Cell<*mut Party>,
    serving: Cell<bool>,
    error: RefCell<CString>,
    retry: Cell<bool>,
}

/// `np_handler`.
pub type HandlerOfC = Option<unsafe extern "C" fn(*mut PartyOfC, *const RequestOfC, *mut AnswerOfC, *mut c_void)>;

impl PartyOfC {
    /// One whose handler runs.
    fn over(party: *mut Party) -> Self {
        let (error, retry) = (RefCell::default(), Cell::new(false));
        Self { current: Cell::new(party), serving: Cell::new(true), error, retry }
    }

    /// Does something with the party and keeps what went wrong.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Party) -> Result<T, Error>) -> Result<T, Code> {
        // SAFETY: `current` is the box of `np_join`, or the reference that the running handler was given and does not use
        // itself; either lives, and nothing else uses it, because a party stays on one thread and `work` is ours: it calls no C.
        let party = unsafe { &mut *self.current.get() };
        work(party).map_err(|error| self.failed(&error))
    }

    /// Memory to write a body in; none when there is no memory at all.
    pub(crate) fn draft(&self, bytes: usize) -> Option<Draft> {
        let draft = self.with(|party| Ok(party.draft_in_slot(bytes))).ok()?;
        draft.or_else(|| private(bytes))
    }

    pub(crate) fn failed(&self, error: &Error) -> Code {
        self.say(&error.to_string(), error.retry_is_safe());
        code::of(error)
    }

    pub(crate) fn misused(&self, what: &str) -> Code {
        self.say(what, true);
        MISUSE
    }

    pub(crate) fn no_ask(&self, why: NoAsk) -> Code {
        match why {
            NoAsk::Misuse(what) => self.misused(what),
            NoAsk::Error(error) => self.failed(&error),
        }
    }

    fn say(&self, text: &str, retry: bool) {
        let text = text.replace('\0', " ");
        self.error.replace(CString::new(text).unwrap_or_default());
        self.retry.set(retry);
    }
}

/// Zeros: what C leaves out is not what lay there before.
fn private(bytes: usize) -> Option<Draft> {
    let mut own = Vec::new();
    own.try_reserve_exact(bytes).ok()?;
    own.resize(bytes, 0);
    Some(Draft::written(own))
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub extern "C" fn np_join() -> *mut PartyOfC {
    let party = PartyOfC::over(Box::into_raw(Box::new(Party::default())));
    party.serving.set(false);
    Box::into_raw(Box::new(party))
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_leave(party: *mut PartyOfC) {
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
pub struct ServingOfC {
    size: usize,
    threads: u32,
    flags: u32,
}

const STREAM: u32 = 1;

/// C's function with C's `user`.
struct Handling(unsafe extern "C" fn(*mut PartyOfC, *const RequestOfC, *mut AnswerOfC, *mut c_void), *mut c_void);

// SAFETY: the header says that with several threads both are used on all of them.
unsafe impl Sync for Handling {}

impl Handling {
    fn run(&self, party: *mut PartyOfC, request: Request) -> Response {
        let (request, mut answer) = (RequestOfC::new(request), AnswerOfC::new(party));
        // SAFETY: C's function with C's `user`; party, request and answer live until it returns.
        unsafe { (self.0)(party, &request, &mut answer, self.1) };
        answer.finish()
    }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_serve(party: *mut PartyOfC, handler: HandlerOfC, user: *mut c_void) -> Code {
    // SAFETY: as the header says.
    unsafe { np_serve_with(party, std::ptr::null(), handler, user) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_serve_with(
    party: *mut PartyOfC,
    how: *const ServingOfC,
    handler: HandlerOfC,
    user: *mut c_void,
) -> Code {
    // SAFETY: NULL, or as the header says.
    let (of_c, how) = unsafe { (party.as_ref(), how.as_ref()) };
    let (Some(of_c), Some(handler)) = (of_c, handler) else { return MISUSE };
    if how.is_some_and(|how| how.size < size_of::<ServingOfC>()) {
        return of_c.misused("np_serving.size is too small: begin with NP_SERVING");
    }
    if of_c.serving.replace(true) {
        return of_c.misused("np_serve was called in a handler");
    }
    let before = of_c.current.get();
    // SAFETY: the box of `np_join`: no handler runs. It is used through the handler's reference only, until `serve` returns.
    let inner = unsafe { &mut *before };
    inner.set_streaming(how.is_some_and(|how| how.flags & STREAM != 0));
    let handling = Handling(handler, user);
    let served = match how.and_then(|how| NonZeroUsize::new(how.threads as usize)).filter(|count| count.get() > 1) {
        None => inner.serve(|inner, request| {
            of_c.current.set(inner);
            handling.run(party, request)
        }),
        Some(threads) => {
            let handling = &handling;
            inner.serve_on(threads, move |inner, request| {
                let mut party = PartyOfC::over(inner);
                handling.run(&mut party, request)
            })
        }
    };
    of_c.current.set(before);
    of_c.serving.set(false);
    served.map_or_else(|error| of_c.failed(&error), |()| OK)
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_error(party: *const PartyOfC) -> *const c_char {
    // SAFETY: NULL or from `np_join`.
    let party = unsafe { party.as_ref() };
    party.map_or(c"the party is NULL".as_ptr(), |party| party.error.borrow().as_ptr())
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_retry_is_safe(party: *const PartyOfC) -> bool {
    // SAFETY: NULL or from `np_join`.
    unsafe { party.as_ref() }.is_some_and(|party| party.retry.get())
}
