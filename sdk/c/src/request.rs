//! `np_request`: a received call.

use std::cell::RefCell;
use std::ffi::{c_char, c_void};

use bytes::Bytes;
use nearpath::Request;

use crate::code::{CCode, MISUSE, OK};
use crate::conversion;
use crate::endpoint::CEndpoint;

/// `np_request`.
#[derive(Debug)]
pub struct CRequest(pub(crate) Request, RefCell<RequestParts>);

/// State of a body that is read in parts.
#[derive(Debug)]
struct RequestParts {
    payload: Request,
    part: Bytes,
}

impl CRequest {
    pub(crate) fn new(mut request: Request) -> Self {
        let payload = request.take_payload();
        Self(
            request,
            RefCell::new(RequestParts {
                payload,
                part: Bytes::new(),
            }),
        )
    }
}

/// Borrows bytes of a request and writes their length.
///
/// # Safety
/// Both are valid or NULL.
unsafe fn borrow_bytes<'a>(
    request: *const CRequest,
    length: *mut usize,
    what: impl FnOnce(&'a Request) -> Option<&'a [u8]>,
) -> *const c_void {
    // SAFETY: NULL, or the request of a handler that runs.
    let bytes = unsafe { request.as_ref() }.and_then(|request| what(&request.0));
    // SAFETY: as the caller says.
    unsafe { conversion::write_length(bytes, length) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_request_body(
    request: *const CRequest,
    bytes: *mut usize,
) -> *const c_void {
    // SAFETY: as the header says.
    unsafe { borrow_bytes(request, bytes, |request| Some(request.body())) }
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_request_method(
    request: *const CRequest,
    bytes: *mut usize,
) -> *const c_char {
    // SAFETY: as the header says.
    unsafe { borrow_bytes(request, bytes, |request| Some(request.method().as_bytes())) }.cast()
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_request_path(
    request: *const CRequest,
    bytes: *mut usize,
) -> *const c_char {
    // SAFETY: as the header says.
    unsafe { borrow_bytes(request, bytes, |request| Some(request.path().as_bytes())) }.cast()
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_request_header(
    request: *const CRequest,
    name: *const c_char,
    bytes: *mut usize,
) -> *const c_char {
    // SAFETY: as the header says.
    let name = unsafe { conversion::text_from_c(name) };
    // SAFETY: as the header says.
    unsafe {
        borrow_bytes(request, bytes, |request| {
            name.and_then(|name| request.head().get(name))
        })
    }
    .cast()
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_request_caller(
    request: *const CRequest,
    bytes: *mut usize,
) -> *const c_char {
    // SAFETY: as the header says.
    unsafe {
        borrow_bytes(request, bytes, |request| {
            request.caller().map(str::as_bytes)
        })
    }
    .cast()
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_request_arrival_path(request: *const CRequest) -> *const c_char {
    // SAFETY: NULL, or the request of a handler that runs.
    let path = unsafe { request.as_ref() }.map(|request| request.0.arrival_path());
    crate::reply::path_name(path)
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_request_is_event(request: *const CRequest) -> bool {
    // SAFETY: NULL, or the request of a handler that runs.
    unsafe { request.as_ref() }.is_some_and(|request| request.0.is_event())
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_request_time_left(request: *const CRequest) -> u64 {
    // SAFETY: NULL, or the request of a handler that runs.
    let left = unsafe { request.as_ref() }.and_then(|request| request.0.time_left());
    left.map_or(u64::MAX, |left| {
        u64::try_from(left.as_nanos()).unwrap_or(u64::MAX)
    })
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_request_topic(
    request: *const CRequest,
    bytes: *mut usize,
) -> *const c_char {
    // SAFETY: as the header says.
    unsafe { borrow_bytes(request, bytes, |request| request.topic().map(str::as_bytes)) }.cast()
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn np_request_part(
    endpoint: *mut CEndpoint,
    request: *const CRequest,
    part: *mut *const c_void,
    bytes: *mut usize,
) -> CCode {
    // SAFETY: NULL, or the endpoint and the request of a handler that runs.
    let both = unsafe { endpoint.as_ref().zip(request.as_ref()) };
    let Some((endpoint, request)) = both.filter(|_| !part.is_null()) else {
        return MISUSE;
    };
    let mut parts = request.1.borrow_mut();
    let came = endpoint.with_current(|endpoint| endpoint.next_part(&mut parts.payload).transpose());
    parts.part = came.as_ref().ok().cloned().flatten().unwrap_or_default();
    let there = matches!(came, Ok(Some(_)));
    // SAFETY: not NULL, and the header says that both can be written. The bytes lie behind the request until its next part.
    unsafe {
        part.write(conversion::write_length(
            there.then(|| parts.part.as_ref()),
            bytes,
        ))
    };
    came.map_or_else(|code| code, |_| OK)
}
