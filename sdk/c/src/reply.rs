//! `np_reply`: a received answer.

use std::ffi::{c_char, c_void};

use nearpath::{Path, Response};

use crate::conversion;

/// `np_reply`.
#[derive(Debug)]
pub struct CReply(pub(crate) Response);

pub(crate) fn path_name(path: Option<Path>) -> *const c_char {
    path.map_or(c"", Path::c_name).as_ptr()
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_reply_status(reply: *const CReply) -> u16 {
    // SAFETY: NULL, or from this library and not freed.
    unsafe { reply.as_ref() }.map_or(0, |reply| reply.0.status())
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_reply_body(reply: *const CReply, bytes: *mut usize) -> *const c_void {
    // SAFETY: NULL, or from this library and not freed; `bytes` can be written.
    unsafe { conversion::write_length(reply.as_ref().map(|reply| reply.0.body().as_ref()), bytes) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_reply_header(
    reply: *const CReply,
    name: *const c_char,
    bytes: *mut usize,
) -> *const c_char {
    // SAFETY: NULL, or as the header says.
    let (reply, name) = unsafe { (reply.as_ref(), conversion::text_from_c(name)) };
    let value = reply
        .zip(name)
        .and_then(|(reply, name)| reply.0.head().get(name));
    // SAFETY: `bytes` can be written.
    unsafe { conversion::write_length(value, bytes) }.cast()
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_reply_path(reply: *const CReply) -> *const c_char {
    // SAFETY: NULL, or from this library and not freed.
    path_name(unsafe { reply.as_ref() }.and_then(|reply| reply.0.path()))
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_reply_instance(reply: *const CReply) -> u64 {
    // SAFETY: NULL, or from this library and not freed.
    unsafe { reply.as_ref() }
        .and_then(|reply| reply.0.instance())
        .unwrap_or(0)
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_reply_free(reply: *mut CReply) {
    if !reply.is_null() {
        // SAFETY: from `Box::into_raw` in this library, and not freed before.
        drop(unsafe { Box::from_raw(reply) });
    }
}
