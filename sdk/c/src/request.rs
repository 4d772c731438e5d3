//! `np_request`: a call that came in.

use std::cell::RefCell;
use std::ffi::{c_char, c_void};

use bytes::Bytes;
use nearpath::Request;

use crate::border;
use crate::code::{Code, MISUSE, OK};
use crate::party::PartyOfC;

/// `np_request`.
#[derive(Debug)]
pub struct RequestOfC(pub(crate) Request, RefCell<Parts>);

/// How its body is read in parts.
#[derive(Debug)]
struct Parts {
    payload: Request,
    part: Bytes,
}

impl RequestOfC {
    pub(crate) fn new(mut request: Request) -> Self {
        let payload = request.payload();
        Self(request, RefCell::new(Parts { payload, part: Bytes::new() }))
    }
}

/// Looks at a request and tells where the bytes lie.
///
/// # Safety
/// Both are valid or NULL.
unsafe fn look<'a>(
    request: *const RequestOfC,
    length: *mut usize,
    what: impl FnOnce(&'a Request) -> Option<&'a [u8]>,
) -> *const c_void {
    // SAFETY: NULL, or the request of a handler that runs.
    let bytes = unsafe { request.as_ref() }.and_then(|request| what(&request.0));
    // SAFETY: as the caller says.
    unsafe { border::tell(bytes, length) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_request_body(request: *const RequestOfC, bytes: *mut usize) -> *const c_void {
    // SAFETY: as the header says.
    unsafe { look(request, bytes, |request| Some(request.body())) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_request_method(request: *const RequestOfC, bytes: *mut usize) -> *const c_char {
    // SAFETY: as the header says.
    unsafe { look(request, bytes, |request| Some(request.method().as_bytes())) }.cast()
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_request_path(request: *const RequestOfC, bytes: *mut usize) -> *const c_char {
    // SAFETY: as the header says.
    unsafe { look(request, bytes, |request| Some(request.path().as_bytes())) }.cast()
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_request_header(
    request: *const RequestOfC,
    name: *const c_char,
    bytes: *mut usize,
) -> *const c_char {
    // SAFETY: as the header says.
    let name = unsafe { border::text(name) };
    // SAFETY: as the header says.
    unsafe { look(request, bytes, |request| name.and_then(|name| request.head().get(name))) }.cast()
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_request_caller(request: *const RequestOfC, bytes: *mut usize) -> *const c_char {
    // SAFETY: as the header says.
    unsafe { look(request, bytes, |request| request.caller().map(str::as_bytes)) }.cast()
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_request_came_over(request: *const RequestOfC) -> *const c_char {
    // SAFETY: NULL, or the request of a handler that runs.
    let path = unsafe { request.as_ref() }.map(|request| request.0.came_over());
    crate::reply::path_name(path)
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_request_is_event(request: *const RequestOfC) -> bool {
    // SAFETY: NULL, or the request of a handler that runs.
    unsafe { request.as_ref() }.is_some_and(|request| request.0.is_event())
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_request_time_left(request: *const RequestOfC) -> u64 {
    // SAFETY: NULL, or the request of a handler that runs.
    let left = unsafe { request.as_ref() }.and_then(|request| request.0.time_left());
    left.map_or(u64::MAX, |left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX))
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_request_topic(request: *const RequestOfC, bytes: *mut usize) -> *const c_char {
    // SAFETY: as the header says.
    unsafe { look(request, bytes, |request| request.topic().map(str::as_bytes)) }.cast()
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_request_part(
    party: *mut PartyOfC,
    request: *const RequestOfC,
    part: *mut *const c_void,
    bytes: *mut usize,
) -> Code {
    // SAFETY: NULL, or the party and the request of a handler that runs.
    let both = unsafe { party.as_ref().zip(request.as_ref()) };
    let Some((party, request)) = both.filter(|_| !part.is_null()) else { return MISUSE };
    let mut parts = request.1.borrow_mut();
    let came = party.with(|party| party.part(&mut parts.payload).transpose());
    parts.part = came.as_ref().ok().cloned().flatten().unwrap_or_default();
    let there = matches!(came, Ok(Some(_)));
    // SAFETY: not NULL, and the header says that both can be written. The bytes lie behind the request until its next part.
    unsafe { part.write(border::tell(there.then(|| parts.part.as_ref()), bytes)) };
    came.map_or_else(|code| code, |_| OK)
}
