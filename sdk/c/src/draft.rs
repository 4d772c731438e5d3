//! `np_draft`: a payload that C writes where it goes out.

use std::ffi::{c_char, c_void};

use nearpath::Draft;

use crate::ask::AskOfC;
use crate::call::{PendingOfC, tell, wish};
use crate::code::{Code, OK};
use crate::party::PartyOfC;
use crate::reply::ReplyOfC;

/// `np_draft`.
#[derive(Debug)]
pub struct DraftOfC(Draft);

impl DraftOfC {
    /// Takes it from C, which must not look there any more.
    ///
    /// # Safety
    /// NULL, or from `np_draft_begin` and not given back.
    pub(crate) unsafe fn take(draft: *mut Self) -> Option<Draft> {
        // SAFETY: from `Box::into_raw` below, as the caller says.
        (!draft.is_null()).then(|| unsafe { Box::from_raw(draft) }.0)
    }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_draft_begin(party: *mut PartyOfC, bytes: usize, place: *mut *mut c_void) -> *mut DraftOfC {
    // SAFETY: NULL or from `np_join`.
    let party = unsafe { party.as_ref() }.filter(|_| !place.is_null());
    let draft = party.and_then(|party| party.draft(bytes));
    let mut draft = draft.map(|draft| Box::new(DraftOfC(draft)));
    if !place.is_null() {
        let written = draft.as_mut().map_or(std::ptr::null_mut(), |draft| draft.0.as_mut_ptr().cast());
        // SAFETY: not NULL, and the header says that it can be written.
        unsafe { place.write(written) };
    }
    draft.map_or(std::ptr::null_mut(), Box::into_raw)
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_draft_cut(draft: *mut DraftOfC, bytes: usize) {
    // SAFETY: NULL, or from `np_draft_begin` and not given back.
    if let Some(draft) = unsafe { draft.as_mut() } {
        draft.0.truncate(bytes);
    }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_draft_free(draft: *mut DraftOfC) {
    // SAFETY: NULL, or from `np_draft_begin` and not given back.
    drop(unsafe { DraftOfC::take(draft) });
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_call_draft(
    party: *mut PartyOfC,
    name: *const c_char,
    draft: *mut DraftOfC,
    ask: *const AskOfC,
    reply: *mut *mut ReplyOfC,
) -> Code {
    // SAFETY: as the header says.
    let (draft, wished) = unsafe { (DraftOfC::take(draft), wish(party, name, ask)) };
    let called = wished.and_then(|wish| {
        let draft = draft.ok_or_else(|| wish.party.misused("the draft is NULL"))?;
        wish.party.with(|party| party.call(wish.name, draft, &wish.ask))
    });
    // SAFETY: as the header says.
    unsafe { tell(called.map(ReplyOfC), reply) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_begin_draft(
    party: *mut PartyOfC,
    name: *const c_char,
    draft: *mut DraftOfC,
    ask: *const AskOfC,
    pending: *mut *mut PendingOfC,
) -> Code {
    // SAFETY: as the header says.
    let (draft, wished) = unsafe { (DraftOfC::take(draft), wish(party, name, ask)) };
    let begun = wished.and_then(|wish| {
        let draft = draft.ok_or_else(|| wish.party.misused("the draft is NULL"))?;
        wish.party.with(|party| party.begin(wish.name, draft, &wish.ask))
    });
    // SAFETY: as the header says.
    unsafe { tell(begun.map(|begun| PendingOfC(Some(begun))), pending) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_notify_draft(
    party: *mut PartyOfC,
    name: *const c_char,
    draft: *mut DraftOfC,
    ask: *const AskOfC,
) -> Code {
    // SAFETY: as the header says.
    let (draft, wished) = unsafe { (DraftOfC::take(draft), wish(party, name, ask)) };
    let Some(draft) = draft else {
        return wished.map_or_else(|code| code, |wish| wish.party.misused("the draft is NULL"));
    };
    let sent = wished.and_then(|wish| wish.party.with(|party| party.notify(wish.name, draft, &wish.ask)));
    sent.map_or_else(|code| code, |()| OK)
}
