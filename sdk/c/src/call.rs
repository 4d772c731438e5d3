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
    pub(crate) endpoint: &'a CEndpoint,
    pub(crate) name: &'a str,
    pub(crate) options: CallOptions,
}

/// # Safety
/// Every pointer is NULL or valid during the call.
pub(crate) unsafe fn call_arguments<'a>(
    endpoint: *mut CEndpoint,
    name: *const c_char,
    options: *const CCallOptions,
) -> Result<CallArguments<'a>, CCode> {
    // SAFETY: NULL or from `np_join`.
    let endpoint = unsafe { endpoint.as_ref() }.ok_or(MISUSE)?;
    // SAFETY: as the caller says.
    let name = unsafe { conversion::text_from_c(name) }
        .ok_or_else(|| endpoint.record_misuse("the name is NULL or no UTF-8"))?;
    // SAFETY: as the caller says.
    let options = unsafe { options::read_options(options) }
        .map_err(|why| endpoint.record_bad_options(why))?;
    Ok(CallArguments {
        endpoint,
        name,
        options,
    })
}

impl CallArguments<'_> {
    /// # Safety
    /// `bytes` of them can be read at `payload`.
    unsafe fn copy_payload(&self, payload: *const c_void, bytes: usize) -> Result<Bytes, CCode> {
        // SAFETY: as the caller says.
        let payload = unsafe { conversion::bytes_from_c(payload, bytes) };
        payload
            .map(Bytes::copy_from_slice)
            .ok_or_else(|| self.endpoint.record_misuse("the payload is NULL"))
    }

    fn make_call(&self, payload: Bytes) -> Result<Response, CCode> {
        self.endpoint
            .with_current(|endpoint| endpoint.call(self.name, payload, &self.options))
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
    endpoint: *mut CEndpoint,
    name: *const c_char,
    payload: *const c_void,
    bytes: usize,
    options: *const CCallOptions,
    reply: *mut *mut CReply,
) -> CCode {
    // SAFETY: as the header says.
    let arguments = unsafe { call_arguments(endpoint, name, options) };
    let called = arguments.and_then(|arguments| {
        // SAFETY: as the header says.
        unsafe { arguments.copy_payload(payload, bytes) }
            .and_then(|payload| arguments.make_call(payload))
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
    endpoint: *mut CEndpoint,
    name: *const c_char,
    payload: *const c_void,
    bytes: usize,
    release: ReleaseFn,
    context: *mut c_void,
    options: *const CCallOptions,
    reply: *mut *mut CReply,
) -> CCode {
    let payload = BorrowedBytes::new(payload, bytes, release, context).into_bytes();
    // SAFETY: as the header says.
    let arguments = unsafe { call_arguments(endpoint, name, options) };
    let called = arguments.and_then(|arguments| {
        let payload =
            payload.ok_or_else(|| arguments.endpoint.record_misuse("the payload is NULL"))?;
        arguments.make_call(payload)
    });
    // SAFETY: as the header says.
    unsafe { write_result(called.map(CReply), reply) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_begin(
    endpoint: *mut CEndpoint,
    name: *const c_char,
    payload: *const c_void,
    bytes: usize,
    options: *const CCallOptions,
    pending: *mut *mut CPending,
) -> CCode {
    // SAFETY: as the header says.
    let begun = unsafe { call_arguments(endpoint, name, options) }.and_then(|arguments| {
        // SAFETY: as the header says.
        let payload = unsafe { arguments.copy_payload(payload, bytes) }?;
        arguments.endpoint.with_current(|endpoint| {
            endpoint.begin_call(arguments.name, payload, &arguments.options)
        })
    });
    // SAFETY: as the header says.
    unsafe { write_result(begun.map(|begun| CPending(Some(begun))), pending) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_wait(
    endpoint: *mut CEndpoint,
    pending: *mut CPending,
    reply: *mut *mut CReply,
) -> CCode {
    // SAFETY: NULL or from `np_join`.
    let endpoint = unsafe { endpoint.as_ref() };
    let Some(endpoint) = endpoint.filter(|_| !pending.is_null()) else {
        return MISUSE;
    };
    // SAFETY: from `np_begin`, and not given back before.
    let pending = unsafe { Box::from_raw(pending) };
    let Some(pending) = pending.0 else {
        return endpoint.record_misuse("the call was waited for already");
    };
    let answered = endpoint.with_current(|endpoint| endpoint.wait_response(pending));
    // SAFETY: as the header says.
    unsafe { write_result(answered.map(CReply), reply) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_wait_any(
    endpoint: *mut CEndpoint,
    pending: *mut *mut CPending,
    count: usize,
    index: *mut usize,
    reply: *mut *mut CReply,
) -> CCode {
    // SAFETY: NULL or from `np_join`.
    let endpoint = unsafe { endpoint.as_ref() };
    let Some(endpoint) = endpoint.filter(|_| !pending.is_null() && !index.is_null()) else {
        return MISUSE;
    };
    // SAFETY: not NULL, and as many as the caller says.
    let places = unsafe { std::slice::from_raw_parts_mut(pending, count) };
    let mut calls: Vec<_> = places
        .iter()
        .map(|&place| {
            // SAFETY: NULL or from `np_begin`, and not given back.
            unsafe { place.as_mut() }.and_then(|of_c| of_c.0.take())
        })
        .collect();
    let Ok(first) = endpoint.with_current(|endpoint| Ok(endpoint.wait_any(&mut calls))) else {
        return MISUSE;
    };
    for (&mut place, call) in places.iter_mut().zip(calls) {
        // SAFETY: as above.
        if let Some(of_c) = unsafe { place.as_mut() } {
            of_c.0 = call;
        }
    }
    let Some((at, outcome)) = first else {
        return endpoint.record_misuse("there is no call to wait for");
    };
    let done = std::mem::replace(&mut places[at], std::ptr::null_mut());
    // SAFETY: from `np_begin`: it was not NULL, its call has been waited for. `index` is not NULL and can be written.
    unsafe {
        drop(Box::from_raw(done));
        index.write(at);
    }
    let answered = outcome.map_err(|error| endpoint.record_error(&error));
    // SAFETY: as the header says.
    unsafe { write_result(answered.map(CReply), reply) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_cancel(endpoint: *mut CEndpoint, pending: *mut CPending) {
    // SAFETY: NULL or from `np_join`.
    let endpoint = unsafe { endpoint.as_ref() };
    let Some(endpoint) = endpoint.filter(|_| !pending.is_null()) else {
        return;
    };
    // SAFETY: from `np_begin`, and not given back before.
    let pending = unsafe { Box::from_raw(pending) };
    let _ = endpoint.with_current(|endpoint| {
        pending
            .0
            .into_iter()
            .for_each(|pending| endpoint.cancel_call(pending));
        Ok(())
    });
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_notify(
    endpoint: *mut CEndpoint,
    name: *const c_char,
    payload: *const c_void,
    bytes: usize,
    options: *const CCallOptions,
) -> CCode {
    // SAFETY: as the header says.
    let sent = unsafe { call_arguments(endpoint, name, options) }.and_then(|arguments| {
        // SAFETY: as the header says.
        let payload = unsafe { arguments.copy_payload(payload, bytes) }?;
        arguments.endpoint.with_current(|endpoint| {
            endpoint.send_event(arguments.name, payload, &arguments.options)
        })
    });
    sent.map_or_else(|code| code, |()| OK)
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "two results")]
pub unsafe extern "C" fn np_publish(
    endpoint: *mut CEndpoint,
    topic: *const c_char,
    payload: *const c_void,
    bytes: usize,
    options: *const CCallOptions,
    sent: *mut usize,
    missed: *mut usize,
) -> CCode {
    // SAFETY: as the header says.
    let published = unsafe { call_arguments(endpoint, topic, options) }.and_then(|arguments| {
        // SAFETY: as the header says.
        let payload = unsafe { arguments.copy_payload(payload, bytes) }?;
        arguments.endpoint.with_current(|endpoint| {
            endpoint.publish_event(arguments.name, payload, &arguments.options)
        })
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
