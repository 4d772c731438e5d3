//! Calls and events.

use std::ffi::{c_char, c_void};

use bytes::Bytes;
use nearpath::blocking::Pending;
use nearpath::{Ask, Response};

use crate::ask::{self, AskOfC};
use crate::border::{self, Lent, Release};
use crate::code::{Code, MISUSE, OK};
use crate::party::PartyOfC;
use crate::reply::ReplyOfC;

/// `np_pending`.
#[derive(Debug)]
pub struct PendingOfC(pub(crate) Pending);

/// What every call needs, read.
pub(crate) struct Wish<'a> {
    pub(crate) party: &'a PartyOfC,
    pub(crate) name: &'a str,
    pub(crate) ask: Ask,
}

/// # Safety
/// Everything is NULL or valid during the call.
pub(crate) unsafe fn wish<'a>(party: *mut PartyOfC, name: *const c_char, ask: *const AskOfC) -> Result<Wish<'a>, Code> {
    // SAFETY: NULL or from `np_join`.
    let party = unsafe { party.as_ref() }.ok_or(MISUSE)?;
    // SAFETY: as the caller says.
    let name = unsafe { border::text(name) }.ok_or_else(|| party.misused("the name is NULL or no UTF-8"))?;
    // SAFETY: as the caller says.
    let ask = unsafe { ask::read(ask) }.map_err(|why| party.no_ask(why))?;
    Ok(Wish { party, name, ask })
}

impl Wish<'_> {
    /// # Safety
    /// `bytes` of them can be read at `payload`.
    unsafe fn copy(&self, payload: *const c_void, bytes: usize) -> Result<Bytes, Code> {
        // SAFETY: as the caller says.
        let payload = unsafe { border::bytes(payload, bytes) };
        payload.map(Bytes::copy_from_slice).ok_or_else(|| self.party.misused("the payload is NULL"))
    }

    fn call(&self, payload: Bytes) -> Result<Response, Code> {
        self.party.with(|party| party.call(self.name, payload, &self.ask))
    }
}

/// Tells the outcome: what was made goes to `place`, else NULL.
///
/// # Safety
/// `place` can be written, or is NULL.
pub(crate) unsafe fn tell<T>(made: Result<T, Code>, place: *mut *mut T) -> Code {
    if place.is_null() {
        return MISUSE;
    }
    let (pointer, code) =
        made.map_or_else(|code| (std::ptr::null_mut(), code), |made| (Box::into_raw(Box::new(made)), OK));
    // SAFETY: not NULL, and can be written.
    unsafe { place.write(pointer) };
    code
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_call(
    party: *mut PartyOfC,
    name: *const c_char,
    payload: *const c_void,
    bytes: usize,
    ask: *const AskOfC,
    reply: *mut *mut ReplyOfC,
) -> Code {
    // SAFETY: as the header says.
    let wished = unsafe { wish(party, name, ask) };
    // SAFETY: as the header says.
    let called = wished.and_then(|wish| unsafe { wish.copy(payload, bytes) }.and_then(|payload| wish.call(payload)));
    // SAFETY: as the header says.
    unsafe { tell(called.map(ReplyOfC), reply) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "C has no other way to lend bytes")]
pub unsafe extern "C" fn np_call_owned(
    party: *mut PartyOfC,
    name: *const c_char,
    payload: *const c_void,
    bytes: usize,
    release: Release,
    context: *mut c_void,
    ask: *const AskOfC,
    reply: *mut *mut ReplyOfC,
) -> Code {
    let payload = Lent::new(payload, bytes, release, context).into_bytes();
    // SAFETY: as the header says.
    let wished = unsafe { wish(party, name, ask) };
    let called = wished.and_then(|wish| {
        let payload = payload.ok_or_else(|| wish.party.misused("the payload is NULL"))?;
        wish.call(payload)
    });
    // SAFETY: as the header says.
    unsafe { tell(called.map(ReplyOfC), reply) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_begin(
    party: *mut PartyOfC,
    name: *const c_char,
    payload: *const c_void,
    bytes: usize,
    ask: *const AskOfC,
    pending: *mut *mut PendingOfC,
) -> Code {
    // SAFETY: as the header says.
    let begun = unsafe { wish(party, name, ask) }.and_then(|wish| {
        // SAFETY: as the header says.
        let payload = unsafe { wish.copy(payload, bytes) }?;
        wish.party.with(|party| party.begin(wish.name, payload, &wish.ask))
    });
    // SAFETY: as the header says.
    unsafe { tell(begun.map(PendingOfC), pending) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_wait(party: *mut PartyOfC, pending: *mut PendingOfC, reply: *mut *mut ReplyOfC) -> Code {
    // SAFETY: NULL or from `np_join`.
    let party = unsafe { party.as_ref() };
    let Some(party) = party.filter(|_| !pending.is_null()) else { return MISUSE };
    // SAFETY: from `np_begin`, and not given back before.
    let pending = unsafe { Box::from_raw(pending) };
    let answered = party.with(|party| party.wait(pending.0));
    // SAFETY: as the header says.
    unsafe { tell(answered.map(ReplyOfC), reply) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_cancel(party: *mut PartyOfC, pending: *mut PendingOfC) {
    // SAFETY: NULL or from `np_join`.
    let party = unsafe { party.as_ref() };
    let Some(party) = party.filter(|_| !pending.is_null()) else { return };
    // SAFETY: from `np_begin`, and not given back before.
    let pending = unsafe { Box::from_raw(pending) };
    let _ = party.with(|party| {
        party.cancel(pending.0);
        Ok(())
    });
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_notify(
    party: *mut PartyOfC,
    name: *const c_char,
    payload: *const c_void,
    bytes: usize,
    ask: *const AskOfC,
) -> Code {
    // SAFETY: as the header says.
    let sent = unsafe { wish(party, name, ask) }.and_then(|wish| {
        // SAFETY: as the header says.
        let payload = unsafe { wish.copy(payload, bytes) }?;
        wish.party.with(|party| party.notify(wish.name, payload, &wish.ask))
    });
    sent.map_or_else(|code| code, |()| OK)
}
