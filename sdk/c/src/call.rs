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
pub struct PendingOfC(pub(crate) Option<Pending>);

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
    unsafe { tell(begun.map(|begun| PendingOfC(Some(begun))), pending) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_wait(party: *mut PartyOfC, pending: *mut PendingOfC, reply: *mut *mut ReplyOfC) -> Code {
    // SAFETY: NULL or from `np_join`.
    let party = unsafe { party.as_ref() };
    let Some(party) = party.filter(|_| !pending.is_null()) else { return MISUSE };
    // SAFETY: from `np_begin`, and not given back before.
    let pending = unsafe { Box::from_raw(pending) };
    let Some(pending) = pending.0 else { return party.misused("the call was waited for already") };
    let answered = party.with(|party| party.wait(pending));
    // SAFETY: as the header says.
    unsafe { tell(answered.map(ReplyOfC), reply) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_wait_any(
    party: *mut PartyOfC,
    pending: *mut *mut PendingOfC,
    count: usize,
    which: *mut usize,
    reply: *mut *mut ReplyOfC,
) -> Code {
    // SAFETY: NULL or from `np_join`.
    let party = unsafe { party.as_ref() };
    let Some(party) = party.filter(|_| !pending.is_null() && !which.is_null()) else { return MISUSE };
    // SAFETY: not NULL, and as many as the caller says.
    let places = unsafe { std::slice::from_raw_parts_mut(pending, count) };
    // SAFETY: each is NULL or from `np_begin`, and not given back.
    let mut calls: Vec<_> =
        places.iter().map(|&place| unsafe { place.as_mut() }.and_then(|of_c| of_c.0.take())).collect();
    let Ok(first) = party.with(|party| Ok(party.wait_any(&mut calls))) else { return MISUSE };
    for (&mut place, call) in places.iter_mut().zip(calls) {
        // SAFETY: as above.
        if let Some(of_c) = unsafe { place.as_mut() } {
            of_c.0 = call;
        }
    }
    let Some((at, outcome)) = first else { return party.misused("there is no call to wait for") };
    let done = std::mem::replace(&mut places[at], std::ptr::null_mut());
    // SAFETY: from `np_begin`: it was not NULL, its call has been waited for. `which` is not NULL and can be written.
    unsafe {
        drop(Box::from_raw(done));
        which.write(at);
    }
    let answered = outcome.map_err(|error| party.failed(&error));
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
        pending.0.into_iter().for_each(|pending| party.cancel(pending));
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

/// See `nearpath.h`.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "two results, told apart")]
pub unsafe extern "C" fn np_publish(
    party: *mut PartyOfC,
    topic: *const c_char,
    payload: *const c_void,
    bytes: usize,
    ask: *const AskOfC,
    sent: *mut usize,
    missed: *mut usize,
) -> Code {
    // SAFETY: as the header says.
    let published = unsafe { wish(party, topic, ask) }.and_then(|wish| {
        // SAFETY: as the header says.
        let payload = unsafe { wish.copy(payload, bytes) }?;
        wish.party.with(|party| party.publish(wish.name, payload, &wish.ask))
    });
    let counts = published.unwrap_or_default();
    for (place, count) in [(sent, counts.sent), (missed, counts.missed)] {
        if !place.is_null() {
            // SAFETY: not NULL, and the header says that it can be written.
            unsafe { place.write(count) };
        }
    }
    published.map_or_else(|code| code, |_| OK)
}
