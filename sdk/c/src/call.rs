//! Calls and events.

use std::ffi::{c_char, c_void};

use bytes::Bytes;
use nearpath::blocking::BegunCall;
use nearpath::{CallOptions, Response};

use crate::code::{CCode, MISUSE, OK};
use crate::conversion::{self, BorrowedBytes, ReleaseFn};
use crate::endpoint::CEndpoint;
use crate::options::{self, CCallOptions};
use crate::reply::CReply;

/// `np_pending`.
#[derive(Debug)]
pub struct CPending(pub(crate) Option<BegunCall>);

/// Parsed arguments of a call.
pub(crate) struct CallArguments<'a> {
    pub(crate) party: &'a CEndpoint,
    pub(crate) name: &'a str,
    pub(crate) ask: CallOptions,
}

/// # Safety
/// Every pointer is NULL or valid during the call.
pub(crate) unsafe fn call_arguments<'a>(
    party: *mut CEndpoint,
    name: *const c_char,
    ask: *const CCallOptions,
) -> Result<CallArguments<'a>, CCode> {
    // SAFETY: NULL or from `np_join`.
    let party = unsafe { party.as_ref() }.ok_or(MISUSE)?;
    // SAFETY: as the caller says.
    let name = unsafe { conversion::text_from_c(name) }
        .ok_or_else(|| party.record_misuse("the name is NULL or no UTF-8"))?;
    // SAFETY: as the caller says.
    let ask = unsafe { options::read_options(ask) }.map_err(|why| party.record_bad_options(why))?;
    Ok(CallArguments { party, name, ask })
}

impl CallArguments<'_> {
    /// # Safety
    /// `bytes` of them can be read at `payload`.
    unsafe fn copy_payload(&self, payload: *const c_void, bytes: usize) -> Result<Bytes, CCode> {
        // SAFETY: as the caller says.
        let payload = unsafe { conversion::bytes_from_c(payload, bytes) };
        payload
            .map(Bytes::copy_from_slice)
            .ok_or_else(|| self.party.record_misuse("the payload is NULL"))
    }

    fn make_call(&self, payload: Bytes) -> Result<Response, CCode> {
        self.party
            .with_current(|party| party.call(self.name, payload, &self.ask))
    }
}

/// Writes the result to `place`, or NULL on failure, and returns the code.
///
/// # Safety
/// `place` can be written, or is NULL.
pub(crate) unsafe fn write_result<T>(made: Result<T, CCode>, place: *mut *mut T) -> CCode {
    if place.is_null() {
        return MISUSE;
    }
    let (pointer, code) = made.map_or_else(
        |code| (std::ptr::null_mut(), code),
        |made| (Box::into_raw(Box::new(made)), OK),
    );
    // SAFETY: not NULL, and can be written.
    unsafe { place.write(pointer) };
    code
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_call(
    party: *mut CEndpoint,
    name: *const c_char,
    payload: *const c_void,
    bytes: usize,
    ask: *const CCallOptions,
    reply: *mut *mut CReply,
) -> CCode {
    // SAFETY: as the header says.
    let wished = unsafe { call_arguments(party, name, ask) };
    // SAFETY: as the header says.
    let called = wished.and_then(|wish| {
        unsafe { wish.copy_payload(payload, bytes) }.and_then(|payload| wish.make_call(payload))
    });
    // SAFETY: as the header says.
    unsafe { write_result(called.map(CReply), reply) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
#[allow(
    clippy::too_many_arguments,
    reason = "C has no other way to lend bytes"
)]
pub unsafe extern "C" fn np_call_owned(
    party: *mut CEndpoint,
    name: *const c_char,
    payload: *const c_void,
    bytes: usize,
    release: ReleaseFn,
    context: *mut c_void,
    ask: *const CCallOptions,
    reply: *mut *mut CReply,
) -> CCode {
    let payload = BorrowedBytes::new(payload, bytes, release, context).into_bytes();
    // SAFETY: as the header says.
    let wished = unsafe { call_arguments(party, name, ask) };
    let called = wished.and_then(|wish| {
        let payload = payload.ok_or_else(|| wish.party.record_misuse("the payload is NULL"))?;
        wish.make_call(payload)
    });
    // SAFETY: as the header says.
    unsafe { write_result(called.map(CReply), reply) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_begin(
    party: *mut CEndpoint,
    name: *const c_char,
    payload: *const c_void,
    bytes: usize,
    ask: *const CCallOptions,
    pending: *mut *mut CPending,
) -> CCode {
    // SAFETY: as the header says.
    let begun = unsafe { call_arguments(party, name, ask) }.and_then(|wish| {
        // SAFETY: as the header says.
        let payload = unsafe { wish.copy_payload(payload, bytes) }?;
        wish.party
            .with_current(|party| party.begin_call(wish.name, payload, &wish.ask))
    });
    // SAFETY: as the header says.
    unsafe { write_result(begun.map(|begun| CPending(Some(begun))), pending) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_wait(
    party: *mut CEndpoint,
    pending: *mut CPending,
    reply: *mut *mut CReply,
) -> CCode {
    // SAFETY: NULL or from `np_join`.
    let party = unsafe { party.as_ref() };
    let Some(party) = party.filter(|_| !pending.is_null()) else {
        return MISUSE;
    };
    // SAFETY: from `np_begin`, and not given back before.
    let pending = unsafe { Box::from_raw(pending) };
    let Some(pending) = pending.0 else {
        return party.record_misuse("the call was waited for already");
    };
    let answered = party.with_current(|party| party.wait_response(pending));
    // SAFETY: as the header says.
    unsafe { write_result(answered.map(CReply), reply) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_wait_any(
    party: *mut CEndpoint,
    pending: *mut *mut CPending,
    count: usize,
    which: *mut usize,
    reply: *mut *mut CReply,
) -> CCode {
    // SAFETY: NULL or from `np_join`.
    let party = unsafe { party.as_ref() };
    let Some(party) = party.filter(|_| !pending.is_null() && !which.is_null()) else {
        return MISUSE;
    };
    // SAFETY: not NULL, and as many as the caller says.
    let places = unsafe { std::slice::from_raw_parts_mut(pending, count) };
    // SAFETY: each is NULL or from `np_begin`, and not given back.
    let mut calls: Vec<_> = places
        .iter()
        .map(|&place| unsafe { place.as_mut() }.and_then(|of_c| of_c.0.take()))
        .collect();
    let Ok(first) = party.with_current(|party| Ok(party.wait_any(&mut calls))) else {
        return MISUSE;
    };
    for (&mut place, call) in places.iter_mut().zip(calls) {
        // SAFETY: as above.
        if let Some(of_c) = unsafe { place.as_mut() } {
            of_c.0 = call;
        }
    }
    let Some((at, outcome)) = first else {
        return party.record_misuse("there is no call to wait for");
    };
    let done = std::mem::replace(&mut places[at], std::ptr::null_mut());
    // SAFETY: from `np_begin`: it was not NULL, its call has been waited for. `which` is not NULL and can be written.
    unsafe {
        drop(Box::from_raw(done));
        which.write(at);
    }
    let answered = outcome.map_err(|error| party.record_error(&error));
    // SAFETY: as the header says.
    unsafe { write_result(answered.map(CReply), reply) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_cancel(party: *mut CEndpoint, pending: *mut CPending) {
    // SAFETY: NULL or from `np_join`.
    let party = unsafe { party.as_ref() };
    let Some(party) = party.filter(|_| !pending.is_null()) else {
        return;
    };
    // SAFETY: from `np_begin`, and not given back before.
    let pending = unsafe { Box::from_raw(pending) };
    let _ = party.with_current(|party| {
        pending
            .0
            .into_iter()
            .for_each(|pending| party.cancel_call(pending));
        Ok(())
    });
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_notify(
    party: *mut CEndpoint,
    name: *const c_char,
    payload: *const c_void,
    bytes: usize,
    ask: *const CCallOptions,
) -> CCode {
    // SAFETY: as the header says.
    let sent = unsafe { call_arguments(party, name, ask) }.and_then(|wish| {
        // SAFETY: as the header says.
        let payload = unsafe { wish.copy_payload(payload, bytes) }?;
        wish.party
            .with_current(|party| party.send_event(wish.name, payload, &wish.ask))
    });
    sent.map_or_else(|code| code, |()| OK)
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "two results, told apart")]
pub unsafe extern "C" fn np_publish(
    party: *mut CEndpoint,
    topic: *const c_char,
    payload: *const c_void,
    bytes: usize,
    ask: *const CCallOptions,
    sent: *mut usize,
    missed: *mut usize,
) -> CCode {
    // SAFETY: as the header says.
    let published = unsafe { call_arguments(party, topic, ask) }.and_then(|wish| {
        // SAFETY: as the header says.
        let payload = unsafe { wish.copy_payload(payload, bytes) }?;
        wish.party
            .with_current(|party| party.publish_event(wish.name, payload, &wish.ask))
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
