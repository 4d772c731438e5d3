//! Codes of errors, and their texts.

use std::ffi::{CStr, c_char, c_int};

use nearpath::{Error, Kind};

/// `np_code`.
pub type Code = c_int;

pub(crate) const OK: Code = 0;
pub(crate) const MISUSE: Code = 10;
pub(crate) const UNWANTED: Code = 11;

/// By number; `ok`, `misuse` and `unwanted` are this language's own.
const NAMES: [&CStr; 12] = [
    c"ok",
    c"name",
    c"head",
    c"unsent",
    c"died",
    c"timeout",
    c"cut",
    c"too_large",
    c"platform",
    c"listen",
    c"misuse",
    c"unwanted",
];

/// The number of an error.
pub(crate) fn of(error: &Error) -> Code {
    code(error.kind())
}

fn code(kind: &Kind) -> Code {
    let at = NAMES.iter().position(|name| name.to_bytes() == kind.name().as_bytes());
    at.map_or(MISUSE, |at| at as Code)
}

/// See `nearpath.h`.
#[unsafe(no_mangle)]
pub extern "C" fn np_code_name(code: Code) -> *const c_char {
    let name = usize::try_from(code).ok().and_then(|code| NAMES.get(code));
    name.unwrap_or(&c"unknown").as_ptr()
}
