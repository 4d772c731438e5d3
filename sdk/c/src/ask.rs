//! How a call is made, as C says it.

use std::ffi::{c_char, c_void};
use std::time::Duration;

use nearpath::{Ask, Error};

use crate::border;

/// `np_field`.
#[repr(C)]
#[derive(Debug)]
pub struct FieldOfC {
    name: *const c_char,
    value: *const c_void,
    bytes: usize,
}

/// `np_ask`.
#[repr(C)]
#[derive(Debug)]
pub struct AskOfC {
    size: usize,
    method: *const c_char,
    path: *const c_char,
    fields: *const FieldOfC,
    field_count: usize,
    deadline_ns: u64,
    flags: u32,
}

const IDEMPOTENT: u32 = 1;
const NEAR_ONLY: u32 = 2;

/// Why there is none.
pub(crate) enum NoAsk {
    Misuse(&'static str),
    Error(Error),
}

/// Reads it.
///
/// # Safety
/// NULL, or it and what it points to stay as they are during the call.
pub(crate) unsafe fn read(ask: *const AskOfC) -> Result<Ask, NoAsk> {
    // SAFETY: NULL or valid, as the caller says.
    let Some(of_c) = (unsafe { ask.as_ref() }) else { return Ok(Ask::default()) };
    if of_c.size < size_of::<AskOfC>() {
        return Err(NoAsk::Misuse("np_ask.size is too small: begin with NP_ASK"));
    }
    let mut ask = Ask::default();
    // SAFETY: both are NULL or text, as the caller says.
    let (method, path) = unsafe { (optional(of_c.method)?, optional(of_c.path)?) };
    ask = method.into_iter().fold(ask, Ask::method);
    ask = path.into_iter().fold(ask, Ask::path);
    if of_c.field_count > 0 && of_c.fields.is_null() {
        return Err(NoAsk::Misuse("np_ask.fields is NULL"));
    }
    for at in 0..of_c.field_count {
        // SAFETY: not NULL, and as many as the caller says.
        let field = unsafe { &*of_c.fields.add(at) };
        // SAFETY: the field's name and value are valid, as the caller says.
        let (name, value) = unsafe { (border::text(field.name), border::bytes(field.value, field.bytes)) };
        let (name, value) = name.zip(value).ok_or(NoAsk::Misuse("a field's name or value is NULL or no UTF-8"))?;
        ask = ask.header(name, value).map_err(NoAsk::Error)?;
    }
    if of_c.deadline_ns > 0 {
        ask = ask.deadline(Duration::from_nanos(of_c.deadline_ns));
    }
    ask = if of_c.flags & IDEMPOTENT != 0 { ask.idempotent() } else { ask };
    Ok(if of_c.flags & NEAR_ONLY != 0 { ask.near_only() } else { ask })
}

/// # Safety
/// NULL, or it ends with NUL.
unsafe fn optional<'a>(text: *const c_char) -> Result<Option<&'a str>, NoAsk> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller says.
    unsafe { border::text(text) }.map(Some).ok_or(NoAsk::Misuse("np_ask.method or path is no UTF-8"))
}
