//! Options of a call, as C passes them.

use std::ffi::{c_char, c_void};
use std::time::Duration;

use nearpath::{CallOptions, Error};

use crate::conversion;

/// `np_field`.
#[repr(C)]
#[derive(Debug)]
pub struct CField {
    name: *const c_char,
    value: *const c_void,
    bytes: usize,
}

/// `np_call_options`.
#[repr(C)]
#[derive(Debug)]
pub struct CCallOptions {
    size: usize,
    method: *const c_char,
    path: *const c_char,
    fields: *const CField,
    field_count: usize,
    deadline_ns: u64,
    flags: u32,
}

const IDEMPOTENT_FLAG: u32 = 1;
const SHM_ONLY_FLAG: u32 = 2;

/// Reason why the options are invalid.
pub(crate) enum BadOptions {
    Misuse(&'static str),
    Error(Error),
}

/// Reads the options.
///
/// # Safety
/// NULL, or the options and all they point to stay unchanged during the call.
pub(crate) unsafe fn read_options(options: *const CCallOptions) -> Result<CallOptions, BadOptions> {
    // SAFETY: NULL or valid, as the caller says.
    let Some(of_c) = (unsafe { options.as_ref() }) else {
        return Ok(CallOptions::default());
    };
    if of_c.size < size_of::<CCallOptions>() {
        return Err(BadOptions::Misuse(
            "np_call_options.size is too small: begin with NP_CALL_OPTIONS",
        ));
    }
    let mut options = CallOptions::default();
    // SAFETY: both are NULL or text, as the caller says.
    let (method, path) = unsafe { (optional_text(of_c.method)?, optional_text(of_c.path)?) };
    options = method.into_iter().fold(options, CallOptions::method);
    options = path.into_iter().fold(options, CallOptions::path);
    if of_c.field_count > 0 && of_c.fields.is_null() {
        return Err(BadOptions::Misuse("np_call_options.fields is NULL"));
    }
    for at in 0..of_c.field_count {
        // SAFETY: not NULL, and as many as the caller says.
        let field = unsafe { &*of_c.fields.add(at) };
        // SAFETY: the field's name and value are valid, as the caller says.
        let (name, value) = unsafe {
            (
                conversion::text_from_c(field.name),
                conversion::bytes_from_c(field.value, field.bytes),
            )
        };
        let (name, value) = name.zip(value).ok_or(BadOptions::Misuse(
            "a field's name or value is NULL or no UTF-8",
        ))?;
        options = options.header(name, value).map_err(BadOptions::Error)?;
    }
    if of_c.deadline_ns > 0 {
        options = options.deadline(Duration::from_nanos(of_c.deadline_ns));
    }
    options = if of_c.flags & IDEMPOTENT_FLAG != 0 {
        options.idempotent()
    } else {
        options
    };
    Ok(if of_c.flags & SHM_ONLY_FLAG != 0 {
        options.shm_only()
    } else {
        options
    })
}

/// # Safety
/// NULL, or it ends with NUL.
unsafe fn optional_text<'a>(text: *const c_char) -> Result<Option<&'a str>, BadOptions> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller says.
    unsafe { conversion::text_from_c(text) }
        .map(Some)
        .ok_or(BadOptions::Misuse(
            "np_call_options.method or path is no UTF-8",
        ))
}
