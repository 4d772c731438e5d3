//! Conversion of bytes and text between C and Rust.

use std::ffi::{CStr, c_char, c_void};

use bytes::Bytes;

/// Release function of C's bytes: `np_free`.
pub(crate) type ReleaseFn = Option<unsafe extern "C" fn(*mut c_void)>;

/// Borrows text of C for the duration of a call.
///
/// # Safety
/// NULL, or it ends with NUL and stays as it is for `'a`.
pub(crate) unsafe fn text_from_c<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not NULL, ends with NUL, as the caller says.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// Borrows bytes of C for the duration of a call; none for a NULL pointer with a length.
///
/// # Safety
/// `bytes_from_c` of them can be read at `data` and stay as they are for `'a`.
pub(crate) unsafe fn bytes_from_c<'a>(data: *const c_void, bytes: usize) -> Option<&'a [u8]> {
    match (data.is_null(), bytes) {
        (_, 0) => Some(&[]),
        (true, _) => None,
        // SAFETY: not NULL, and as long as the caller says.
        (false, _) => Some(unsafe { std::slice::from_raw_parts(data.cast(), bytes) }),
    }
}

/// Bytes of C that stay borrowed until the last reader drops them.
pub(crate) struct BorrowedBytes {
    data: *const c_void,
    bytes: usize,
    release: ReleaseFn,
    context: *mut c_void,
}

// SAFETY: the header says that release may be called on another thread, and that the bytes stay as they are until then.
unsafe impl Send for BorrowedBytes {}

impl BorrowedBytes {
    /// Takes the bytes over at once, so that they are released in any case.
    pub(crate) fn new(
        data: *const c_void,
        bytes: usize,
        release: ReleaseFn,
        context: *mut c_void,
    ) -> Self {
        Self {
            data,
            bytes,
            release,
            context,
        }
    }

    /// Converts to bytes; none for a NULL pointer with a length.
    pub(crate) fn into_bytes(self) -> Option<Bytes> {
        (!self.data.is_null() || self.bytes == 0).then(|| Bytes::from_owner(self))
    }
}

impl AsRef<[u8]> for BorrowedBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the header says that the bytes stay as they are until release, which is called when `self` is dropped.
        unsafe { bytes_from_c(self.data, self.bytes) }.unwrap_or_default()
    }
}

impl Drop for BorrowedBytes {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: C gave the function together with its context; `self` is dropped once.
            unsafe { release(self.context) }
        }
    }
}

/// Writes the length and returns the pointer; NULL when there are no bytes.
///
/// # Safety
/// `length` can be written, or is NULL.
pub(crate) unsafe fn write_length(bytes: Option<&[u8]>, length: *mut usize) -> *const c_void {
    if !length.is_null() {
        // SAFETY: not NULL, and the caller says that it can be written.
        unsafe { length.write(bytes.map_or(0, <[u8]>::len)) }
    }
    bytes.map_or(std::ptr::null(), |bytes| bytes.as_ptr().cast())
}
