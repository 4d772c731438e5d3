//! `np_answer`: what a handler answers.

use std::ffi::{c_char, c_void};

use bytes::Bytes;
use nearpath::{Draft, Head, Payload, Response};

use crate::border::{self, Lent, Release};
use crate::code::{self, Code, MISUSE, OK, UNWANTED};
use crate::draft::DraftOfC;
use crate::party::PartyOfC;
use crate::reply::ReplyOfC;

/// `np_answer`.
#[derive(Debug)]
pub struct AnswerOfC {
    status: u16,
    head: Head,
    body: Body,
    /// Where it is made.
    party: *const PartyOfC,
}

#[derive(Debug)]
enum Body {
    Whole(Payload),
    /// C writes there until the handler returns.
    Written(Draft),
}

impl AnswerOfC {
    pub(crate) fn new(party: *const PartyOfC) -> Self {
        Self { status: 200, head: Head::default(), body: Body::Whole(Payload::default()), party }
    }

    pub(crate) fn finish(self) -> Response {
        let body = match self.body {
            Body::Whole(payload) => payload,
            Body::Written(written) => written.into(),
        };
        Response::new(body).with_status(self.status).with_head(self.head)
    }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_answer_status(answer: *mut AnswerOfC, status: u16) {
    // SAFETY: NULL, or the answer of a handler that runs.
    if let Some(answer) = unsafe { answer.as_mut() } {
        answer.status = status;
    }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_answer_header(
    answer: *mut AnswerOfC,
    name: *const c_char,
    value: *const c_void,
    bytes: usize,
) -> Code {
    // SAFETY: NULL, or as the header says.
    let (answer, name, value) = unsafe { (answer.as_mut(), border::text(name), border::bytes(value, bytes)) };
    let (Some(answer), Some(name), Some(value)) = (answer, name, value) else { return MISUSE };
    answer.head.push(name, value).map_or_else(|error| code::of(&error), |()| OK)
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_answer_body(answer: *mut AnswerOfC, body: *const c_void, bytes: usize) -> Code {
    // SAFETY: NULL, or as the header says.
    let (answer, body) = unsafe { (answer.as_mut(), border::bytes(body, bytes)) };
    let Some((answer, body)) = answer.zip(body) else { return MISUSE };
    answer.body = Body::Whole(Bytes::copy_from_slice(body).into());
    OK
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_answer_body_owned(
    answer: *mut AnswerOfC,
    body: *const c_void,
    bytes: usize,
    release: Release,
    context: *mut c_void,
) -> Code {
    let body = Lent::new(body, bytes, release, context).into_bytes();
    // SAFETY: NULL, or the answer of a handler that runs.
    let Some((answer, body)) = unsafe { answer.as_mut() }.zip(body) else { return MISUSE };
    answer.body = Body::Whole(body.into());
    OK
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_answer_begin(answer: *mut AnswerOfC, bytes: usize) -> *mut c_void {
    // SAFETY: NULL, or the answer of a handler that runs.
    let Some(answer) = (unsafe { answer.as_mut() }) else { return std::ptr::null_mut() };
    // SAFETY: the party that serves; it lives while the handler runs.
    let Some(party) = (unsafe { answer.party.as_ref() }) else { return std::ptr::null_mut() };
    let Some(mut draft) = party.draft(bytes) else { return std::ptr::null_mut() };
    let place = draft.as_mut_ptr().cast();
    answer.body = Body::Written(draft);
    place
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_answer_draft(answer: *mut AnswerOfC, draft: *mut DraftOfC) -> Code {
    // SAFETY: NULL, or from `np_draft_begin` and not given back.
    let draft = unsafe { DraftOfC::take(draft) };
    // SAFETY: NULL, or the answer of a handler that runs.
    let Some((answer, draft)) = unsafe { answer.as_mut() }.zip(draft) else { return MISUSE };
    answer.body = Body::Whole(draft.into());
    OK
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_answer_reply(answer: *mut AnswerOfC, reply: *mut ReplyOfC) -> Code {
    if reply.is_null() {
        return MISUSE;
    }
    // SAFETY: from `Box::into_raw` in this library, and not freed before.
    let reply = unsafe { Box::from_raw(reply) };
    // SAFETY: NULL, or the answer of a handler that runs.
    let Some(answer) = (unsafe { answer.as_mut() }) else { return MISUSE };
    answer.status = reply.0.status();
    answer.body = Body::Whole(reply.0.into_body());
    OK
}

/// # Safety
/// Both are NULL, or those of a handler that runs.
unsafe fn both<'a>(party: *mut PartyOfC, answer: *mut AnswerOfC) -> Option<(&'a PartyOfC, &'a mut AnswerOfC)> {
    // SAFETY: as the caller says.
    unsafe { party.as_ref().zip(answer.as_mut()) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_answer_open(party: *mut PartyOfC, answer: *mut AnswerOfC) -> Code {
    // SAFETY: as the header says.
    let Some((party, answer)) = (unsafe { both(party, answer) }) else { return MISUSE };
    let head = std::mem::replace(answer, AnswerOfC::new(answer.party)).finish();
    let begun = party.with(|party| Ok(party.begin_answer(head)));
    if matches!(begun, Ok(Ok(()))) { OK } else { UNWANTED }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_answer_write(
    party: *mut PartyOfC,
    answer: *mut AnswerOfC,
    piece: *const c_void,
    bytes: usize,
) -> Code {
    // SAFETY: as the header says.
    let (both, piece) = unsafe { (both(party, answer), border::bytes(piece, bytes)) };
    let (Some((party, _)), Some(piece)) = (both, piece) else { return MISUSE };
    let piece = Bytes::copy_from_slice(piece);
    let written = party.with(|party| Ok(party.write_answer(piece)));
    if matches!(written, Ok(Ok(()))) { OK } else { UNWANTED }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_answer_finish(party: *mut PartyOfC, answer: *mut AnswerOfC) -> Code {
    // SAFETY: as the header says.
    let Some((party, _)) = (unsafe { both(party, answer) }) else { return MISUSE };
    let finished = party.with(|party| {
        party.finish_answer();
        Ok(())
    });
    finished.map_or_else(|code| code, |()| OK)
}
