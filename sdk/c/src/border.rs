//! Bytes and text that cross the border.

use std::ffi::{CStr, c_char, c_void};

use bytes::Bytes;

/// Gives bytes back to who made them: `np_free`.
pub(crate) type Release = Option<unsafe extern "C" fn(*mut c_void)>;

/// Text of C's, for as long as the call lasts.
///
/// # Safety
/// NULL, or it ends with NUL and stays as it is for `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not NULL, ends with NUL, as the caller says.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// Bytes of C's, for as long as the call lasts; none when there are some at NULL.
///
/// # Safety
/// `bytes` of them can be read at `data` and stay as they are for `'a`.
pub(crate) unsafe fn bytes<'a>(data: *const c_void, bytes: usize) -> Option<&'a [u8]> {
    match (data.is_null(), bytes) {
        (_, 0) => Some(&[]),
        (true, _) => None,
        // SAFETY: not NULL, and as long as the caller says.
        (false, _) => Some(unsafe { std::slice::from_raw_parts(data.cast(), bytes) }),
    }
}

/// Bytes that stay C's until the last reader is done.
pub(crate) struct Lent {
    data: *const c_void,
    bytes: usize,
    release: Release,
    context: *mut c_void,
}

// SAFETY: the header says that release may be called on another thread, and that the bytes stay as they are until then.
unsafe impl Send for Lent {}

impl Lent {
    /// Taken over at once, so that they are given back whatever happens.
    pub(crate) fn new(data: *const c_void, bytes: usize, release: Release, context: *mut c_void) -> Self {
        Self { data, bytes, release, context }
    }

    /// As bytes; none when there are some at NULL.
    pub(crate) fn into_bytes(self) -> Option<Bytes> {
        (!self.data.is_null() || self.bytes == 0).then(|| Bytes::from_owner(self))
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the header says that the bytes stay as they are until release, which is called when `self` is dropped.
        unsafe { bytes(self.data, self.bytes) }.unwrap_or_default()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: C gave the function together with its context; `self` is dropped once.
            unsafe { release(self.context) }
        }
    }
}

/// Tells where bytes lie; NULL when there are none.
///
/// # Safety
/// `length` can be written, or is NULL.
pub(crate) unsafe fn tell(bytes: Option<&[u8]>, length: *mut usize) -> *const c_void {
    if !length.is_null() {
        // SAFETY: not NULL, and the caller says that it can be written.
        unsafe { length.write(bytes.map_or(0, <[u8]>::len)) }
    }
    bytes.map_or(std::ptr::null(), |bytes| bytes.as_ptr().cast())
}
