//! Error codes and their names.

use std::ffi::{CStr, c_char, c_int};

use nearpath::{Error, ErrorKind};

/// `np_code`.
pub type CCode = c_int;

pub(crate) const OK: CCode = 0;
pub(crate) const MISUSE: CCode = 10;
pub(crate) const UNWANTED: CCode = 11;

/// Names by number; `ok`, `misuse` and `unwanted` exist only in C.
const NAMES: [&CStr; 12] = [
    c"ok",
    c"name",
    c"head",
    c"unsent",
    c"died",
    c"timeout",
    c"truncated",
    c"too_large",
    c"platform",
    c"listen",
    c"misuse",
    c"unwanted",
];

/// Returns the code of an error.
pub(crate) fn error_code(error: &Error) -> CCode {
    kind_code(error.kind())
}

fn kind_code(kind: &ErrorKind) -> CCode {
    let at = NAMES
        .iter()
        .position(|name| name.to_bytes() == kind.code_name().as_bytes());
    at.map_or(MISUSE, |at| at as CCode)
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub extern "C" fn np_code_name(code: CCode) -> *const c_char {
    let name = usize::try_from(code).ok().and_then(|code| NAMES.get(code));
    name.unwrap_or(&c"unknown").as_ptr()
}
