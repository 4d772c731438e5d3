//! `np_answer`: the answer of a handler.

use std::ffi::{c_char, c_void};

use bytes::Bytes;
use nearpath::{BodyDraft, CallBody, HeaderFields, Response};

use crate::code::{self, CCode, MISUSE, OK, UNWANTED};
use crate::conversion::{self, BorrowedBytes, ReleaseFn};
use crate::draft::CDraft;
use crate::endpoint::CEndpoint;
use crate::reply::CReply;

/// `np_answer`.
#[derive(Debug)]
pub struct CAnswer {
    status: u16,
    head: HeaderFields,
    body: AnswerBody,
    /// State of the body.
    endpoint: *const CEndpoint,
}

#[derive(Debug)]
enum AnswerBody {
    Whole(CallBody),
    /// Memory that C writes until the handler returns.
    Written(BodyDraft),
}

impl CAnswer {
    pub(crate) fn new(endpoint: *const CEndpoint) -> Self {
        Self {
            status: 200,
            head: HeaderFields::default(),
            body: AnswerBody::Whole(CallBody::default()),
            endpoint,
        }
    }

    pub(crate) fn into_response(self) -> Response {
        let body = match self.body {
            AnswerBody::Whole(payload) => payload,
            AnswerBody::Written(written) => written.into(),
        };
        Response::new(body)
            .with_status(self.status)
            .with_head(self.head)
    }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_answer_status(answer: *mut CAnswer, status: u16) {
    // SAFETY: NULL, or the answer of a handler that runs.
    if let Some(answer) = unsafe { answer.as_mut() } {
        answer.status = status;
    }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_answer_header(
    answer: *mut CAnswer,
    name: *const c_char,
    value: *const c_void,
    bytes: usize,
) -> CCode {
    // SAFETY: NULL, or as the header says.
    let (answer, name, value) = unsafe {
        (
            answer.as_mut(),
            conversion::text_from_c(name),
            conversion::bytes_from_c(value, bytes),
        )
    };
    let (Some(answer), Some(name), Some(value)) = (answer, name, value) else {
        return MISUSE;
    };
    answer
        .head
        .push_field(name, value)
        .map_or_else(|error| code::error_code(&error), |()| OK)
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_answer_body(
    answer: *mut CAnswer,
    body: *const c_void,
    bytes: usize,
) -> CCode {
    // SAFETY: NULL, or as the header says.
    let (answer, body) = unsafe { (answer.as_mut(), conversion::bytes_from_c(body, bytes)) };
    let Some((answer, body)) = answer.zip(body) else {
        return MISUSE;
    };
    answer.body = AnswerBody::Whole(Bytes::copy_from_slice(body).into());
    OK
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_answer_body_owned(
    answer: *mut CAnswer,
    body: *const c_void,
    bytes: usize,
    release: ReleaseFn,
    context: *mut c_void,
) -> CCode {
    let body = BorrowedBytes::new(body, bytes, release, context).into_bytes();
    // SAFETY: NULL, or the answer of a handler that runs.
    let Some((answer, body)) = unsafe { answer.as_mut() }.zip(body) else {
        return MISUSE;
    };
    answer.body = AnswerBody::Whole(body.into());
    OK
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_answer_begin(answer: *mut CAnswer, bytes: usize) -> *mut c_void {
    // SAFETY: NULL, or the answer of a handler that runs.
    let Some(answer) = (unsafe { answer.as_mut() }) else {
        return std::ptr::null_mut();
    };
    // SAFETY: the endpoint that serves; it lives while the handler runs.
    let Some(endpoint) = (unsafe { answer.endpoint.as_ref() }) else {
        return std::ptr::null_mut();
    };
    let Some(mut draft) = endpoint.draft_body(bytes) else {
        return std::ptr::null_mut();
    };
    let place = draft.as_mut_ptr().cast();
    answer.body = AnswerBody::Written(draft);
    place
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_answer_draft(answer: *mut CAnswer, draft: *mut CDraft) -> CCode {
    // SAFETY: NULL, or from `np_draft_begin` and not given back.
    let draft = unsafe { CDraft::take_draft(draft) };
    // SAFETY: NULL, or the answer of a handler that runs.
    let Some((answer, draft)) = unsafe { answer.as_mut() }.zip(draft) else {
        return MISUSE;
    };
    answer.body = AnswerBody::Whole(draft.into());
    OK
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_answer_reply(answer: *mut CAnswer, reply: *mut CReply) -> CCode {
    if reply.is_null() {
        return MISUSE;
    }
    // SAFETY: from `Box::into_raw` in this library, and not freed before.
    let reply = unsafe { Box::from_raw(reply) };
    // SAFETY: NULL, or the answer of a handler that runs.
    let Some(answer) = (unsafe { answer.as_mut() }) else {
        return MISUSE;
    };
    answer.status = reply.0.status();
    answer.body = AnswerBody::Whole(reply.0.into_body());
    OK
}

/// # Safety
/// Both are NULL, or belong to a running handler.
unsafe fn endpoint_and_answer<'a>(
    endpoint: *mut CEndpoint,
    answer: *mut CAnswer,
) -> Option<(&'a CEndpoint, &'a mut CAnswer)> {
    // SAFETY: as the caller says.
    unsafe { endpoint.as_ref().zip(answer.as_mut()) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_answer_open(endpoint: *mut CEndpoint, answer: *mut CAnswer) -> CCode {
    // SAFETY: as the header says.
    let Some((endpoint, answer)) = (unsafe { endpoint_and_answer(endpoint, answer) }) else {
        return MISUSE;
    };
    let head = std::mem::replace(answer, CAnswer::new(answer.endpoint)).into_response();
    let begun = endpoint.with_current(|endpoint| Ok(endpoint.begin_response(head)));
    if matches!(begun, Ok(Ok(()))) {
        OK
    } else {
        UNWANTED
    }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_answer_write(
    endpoint: *mut CEndpoint,
    answer: *mut CAnswer,
    piece: *const c_void,
    bytes: usize,
) -> CCode {
    // SAFETY: as the header says.
    let (both, piece) = unsafe {
        (
            endpoint_and_answer(endpoint, answer),
            conversion::bytes_from_c(piece, bytes),
        )
    };
    let (Some((endpoint, _)), Some(piece)) = (both, piece) else {
        return MISUSE;
    };
    let piece = Bytes::copy_from_slice(piece);
    let written = endpoint.with_current(|endpoint| Ok(endpoint.write_response(piece)));
    if matches!(written, Ok(Ok(()))) {
        OK
    } else {
        UNWANTED
    }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_answer_finish(endpoint: *mut CEndpoint, answer: *mut CAnswer) -> CCode {
    // SAFETY: as the header says.
    let Some((endpoint, _)) = (unsafe { endpoint_and_answer(endpoint, answer) }) else {
        return MISUSE;
    };
    let finished = endpoint.with_current(|endpoint| {
        endpoint.finish_response();
        Ok(())
    });
    finished.map_or_else(|code| code, |()| OK)
}
