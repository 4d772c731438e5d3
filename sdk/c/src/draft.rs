//! `np_draft`: a payload that C writes in place.

use std::ffi::{c_char, c_void};

use nearpath::BodyDraft;

use crate::call::{CPending, call_arguments, write_result};
use crate::code::{CCode, OK};
use crate::endpoint::CEndpoint;
use crate::options::CCallOptions;
use crate::reply::CReply;

/// `np_draft`.
#[derive(Debug)]
pub struct CDraft(BodyDraft);

impl CDraft {
    /// Takes the draft from C, which must not use it any more.
    ///
    /// # Safety
    /// NULL, or from `np_draft_begin` and not yet passed back.
    pub(crate) unsafe fn take_draft(draft: *mut Self) -> Option<BodyDraft> {
        // SAFETY: from `Box::into_raw` below, as the caller says.
        (!draft.is_null()).then(|| unsafe { Box::from_raw(draft) }.0)
    }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_draft_begin(
    endpoint: *mut CEndpoint,
    bytes: usize,
    place: *mut *mut c_void,
) -> *mut CDraft {
    // SAFETY: NULL or from `np_join`.
    let endpoint = unsafe { endpoint.as_ref() }.filter(|_| !place.is_null());
    let draft = endpoint.and_then(|endpoint| endpoint.draft_body(bytes));
    let mut draft = draft.map(|draft| Box::new(CDraft(draft)));
    if !place.is_null() {
        let written = draft
            .as_mut()
            .map_or(std::ptr::null_mut(), |draft| draft.0.as_mut_ptr().cast());
        // SAFETY: not NULL, and the header says that it can be written.
        unsafe { place.write(written) };
    }
    draft.map_or(std::ptr::null_mut(), Box::into_raw)
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_draft_truncate(draft: *mut CDraft, bytes: usize) {
    // SAFETY: NULL, or from `np_draft_begin` and not given back.
    if let Some(draft) = unsafe { draft.as_mut() } {
        draft.0.truncate(bytes);
    }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_draft_free(draft: *mut CDraft) {
    // SAFETY: NULL, or from `np_draft_begin` and not given back.
    drop(unsafe { CDraft::take_draft(draft) });
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_call_draft(
    endpoint: *mut CEndpoint,
    name: *const c_char,
    draft: *mut CDraft,
    options: *const CCallOptions,
    reply: *mut *mut CReply,
) -> CCode {
    // SAFETY: as the header says.
    let (draft, arguments) = unsafe {
        (
            CDraft::take_draft(draft),
            call_arguments(endpoint, name, options),
        )
    };
    let called = arguments.and_then(|arguments| {
        let draft = draft.ok_or_else(|| arguments.endpoint.record_misuse("the draft is NULL"))?;
        arguments
            .endpoint
            .with_current(|endpoint| endpoint.call(arguments.name, draft, &arguments.options))
    });
    // SAFETY: as the header says.
    unsafe { write_result(called.map(CReply), reply) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_begin_draft(
    endpoint: *mut CEndpoint,
    name: *const c_char,
    draft: *mut CDraft,
    options: *const CCallOptions,
    pending: *mut *mut CPending,
) -> CCode {
    // SAFETY: as the header says.
    let (draft, arguments) = unsafe {
        (
            CDraft::take_draft(draft),
            call_arguments(endpoint, name, options),
        )
    };
    let begun = arguments.and_then(|arguments| {
        let draft = draft.ok_or_else(|| arguments.endpoint.record_misuse("the draft is NULL"))?;
        arguments
            .endpoint
            .with_current(|endpoint| endpoint.begin_call(arguments.name, draft, &arguments.options))
    });
    // SAFETY: as the header says.
    unsafe { write_result(begun.map(|begun| CPending(Some(begun))), pending) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_notify_draft(
    endpoint: *mut CEndpoint,
    name: *const c_char,
    draft: *mut CDraft,
    options: *const CCallOptions,
) -> CCode {
    // SAFETY: as the header says.
    let (draft, arguments) = unsafe {
        (
            CDraft::take_draft(draft),
            call_arguments(endpoint, name, options),
        )
    };
    let Some(draft) = draft else {
        return arguments.map_or_else(
            |code| code,
            |arguments| arguments.endpoint.record_misuse("the draft is NULL"),
        );
    };
    let sent = arguments.and_then(|arguments| {
        arguments
            .endpoint
            .with_current(|endpoint| endpoint.send_event(arguments.name, draft, &arguments.options))
    });
    sent.map_or_else(|code| code, |()| OK)
}
