//! `np_reply`: an answer that came.

use std::ffi::{c_char, c_void};

use nearpath::{Path, Response};

use crate::border;

/// `np_reply`.
#[derive(Debug)]
pub struct ReplyOfC(pub(crate) Response);

pub(crate) fn path_name(path: Option<Path>) -> *const c_char {
    match path {
        Some(Path::Shm) => c"shm".as_ptr(),
        Some(Path::Direct) => c"direct".as_ptr(),
        Some(Path::Quic) => c"quic".as_ptr(),
        Some(Path::Punch) => c"punch".as_ptr(),
        Some(Path::Relay) => c"relay".as_ptr(),
        Some(Path::Tls) => c"tls".as_ptr(),
        Some(Path::Http) => c"http".as_ptr(),
        _ => c"".as_ptr(),
    }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_reply_status(reply: *const ReplyOfC) -> u16 {
    // SAFETY: NULL, or from this library and not freed.
    unsafe { reply.as_ref() }.map_or(0, |reply| reply.0.status())
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_reply_body(reply: *const ReplyOfC, bytes: *mut usize) -> *const c_void {
    // SAFETY: NULL, or from this library and not freed; `bytes` can be written.
    unsafe { border::tell(reply.as_ref().map(|reply| reply.0.body().as_ref()), bytes) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_reply_header(
    reply: *const ReplyOfC,
    name: *const c_char,
    bytes: *mut usize,
) -> *const c_char {
    // SAFETY: NULL, or as the header says.
    let (reply, name) = unsafe { (reply.as_ref(), border::text(name)) };
    let value = reply.zip(name).and_then(|(reply, name)| reply.0.head().get(name));
    // SAFETY: `bytes` can be written.
    unsafe { border::tell(value, bytes) }.cast()
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_reply_path(reply: *const ReplyOfC) -> *const c_char {
    // SAFETY: NULL, or from this library and not freed.
    path_name(unsafe { reply.as_ref() }.and_then(|reply| reply.0.path()))
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_reply_instance(reply: *const ReplyOfC) -> u64 {
    // SAFETY: NULL, or from this library and not freed.
    unsafe { reply.as_ref() }.and_then(|reply| reply.0.instance()).unwrap_or(0)
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_reply_free(reply: *mut ReplyOfC) {
    if !reply.is_null() {
        // SAFETY: from `Box::into_raw` in this library, and not freed before.
        drop(unsafe { Box::from_raw(reply) });
    }
}
