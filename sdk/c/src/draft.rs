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
    party: *mut CEndpoint,
    bytes: usize,
    place: *mut *mut c_void,
) -> *mut CDraft {
    // SAFETY: NULL or from `np_join`.
    let party = unsafe { party.as_ref() }.filter(|_| !place.is_null());
    let draft = party.and_then(|party| party.draft_body(bytes));
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
pub unsafe extern "C" fn np_draft_cut(draft: *mut CDraft, bytes: usize) {
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
    party: *mut CEndpoint,
    name: *const c_char,
    draft: *mut CDraft,
    ask: *const CCallOptions,
    reply: *mut *mut CReply,
) -> CCode {
    // SAFETY: as the header says.
    let (draft, wished) = unsafe { (CDraft::take_draft(draft), call_arguments(party, name, ask)) };
    let called = wished.and_then(|wish| {
        let draft = draft.ok_or_else(|| wish.party.record_misuse("the draft is NULL"))?;
        wish.party
            .with_current(|party| party.call(wish.name, draft, &wish.ask))
    });
    // SAFETY: as the header says.
    unsafe { write_result(called.map(CReply), reply) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_begin_draft(
    party: *mut CEndpoint,
    name: *const c_char,
    draft: *mut CDraft,
    ask: *const CCallOptions,
    pending: *mut *mut CPending,
) -> CCode {
    // SAFETY: as the header says.
    let (draft, wished) = unsafe { (CDraft::take_draft(draft), call_arguments(party, name, ask)) };
    let begun = wished.and_then(|wish| {
        let draft = draft.ok_or_else(|| wish.party.record_misuse("the draft is NULL"))?;
        wish.party
            .with_current(|party| party.begin_call(wish.name, draft, &wish.ask))
    });
    // SAFETY: as the header says.
    unsafe { write_result(begun.map(|begun| CPending(Some(begun))), pending) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_notify_draft(
    party: *mut CEndpoint,
    name: *const c_char,
    draft: *mut CDraft,
    ask: *const CCallOptions,
) -> CCode {
    // SAFETY: as the header says.
    let (draft, wished) = unsafe { (CDraft::take_draft(draft), call_arguments(party, name, ask)) };
    let Some(draft) = draft else {
        return wished.map_or_else(
            |code| code,
            |wish| wish.party.record_misuse("the draft is NULL"),
        );
    };
    let sent = wished.and_then(|wish| {
        wish.party
            .with_current(|party| party.send_event(wish.name, draft, &wish.ask))
    });
    sent.map_or_else(|code| code, |()| OK)
}
