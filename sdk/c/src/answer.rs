//! `np_answer`: what a handler answers.

use std::ffi::{c_char, c_void};

use bytes::Bytes;
use nearpath::{Draft, Head, Payload, Response};

use crate::border::{self, Lent, Release};
use crate::code::{self, Code, MISUSE, OK};
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
