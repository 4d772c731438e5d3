//! Mode `static`: files of one folder. The kernel keeps every path below that folder (`openat2`
//! with `RESOLVE_BENEATH`), so neither `..` nor a symbolic link leads out.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::stream;
use http::header::{
    ALLOW, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, LAST_MODIFIED, LOCATION,
};
use http::{Method, Response, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use nearpath_types::{PlatformError, Reason};
use rustix::fs::{CWD, Mode as FileMode, OFlags, ResolveFlags, openat2};

use super::{ModeCall, ModeResponse};
use crate::errors::{self, watchdog_error};
use crate::response_body::{AnyError, WatchdogBody};

/// Bytes per read. Files are local and mostly cached, so reading on this thread is cheaper than on
/// another.
const CHUNK_BYTES: u64 = 64 * 1024;

/// Content types by file name extension, sorted for the binary search.
const CONTENT_TYPES: &[(&str, &str)] = &[
    ("avif", "image/avif"),
    ("css", "text/css; charset=utf-8"),
    ("csv", "text/csv; charset=utf-8"),
    ("gif", "image/gif"),
    ("gz", "application/gzip"),
    ("htm", "text/html; charset=utf-8"),
    ("html", "text/html; charset=utf-8"),
    ("ico", "image/x-icon"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("map", "application/json"),
    ("md", "text/markdown; charset=utf-8"),
    ("mjs", "text/javascript; charset=utf-8"),
    ("mp3", "audio/mpeg"),
    ("mp4", "video/mp4"),
    ("otf", "font/otf"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("svg", "image/svg+xml"),
    ("ttf", "font/ttf"),
    ("txt", "text/plain; charset=utf-8"),
    ("wasm", "application/wasm"),
    ("webm", "video/webm"),
    ("webmanifest", "application/manifest+json"),
    ("webp", "image/webp"),
    ("woff", "font/woff"),
    ("woff2", "font/woff2"),
    ("xml", "text/xml; charset=utf-8"),
    ("zip", "application/zip"),
];

/// Mode `static`: serves the files of a folder.
#[derive(Debug)]
pub(crate) struct StaticMode {
    root: OwnedFd,
}

/// File that is about to be sent.
struct StaticFile {
    file: File,
    length: u64,
    modified: SystemTime,
    etag: String,
    content_type: &'static str,
}

enum FileLookup {
    File(StaticFile),
    /// Folder without its trailing slash: relative links in its index would point to the wrong
    /// place.
    AddSlash,
}

impl StaticMode {
    /// Opens the folder.
    ///
    /// # Errors
    /// When it does not exist or is no folder.
    pub(crate) fn new(folder: &Path) -> io::Result<Self> {
        // `O_PATH`: the folder is only a starting point for `openat2`, and need not be readable.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, folder, flags, FileMode::empty()).map_err(|fault| {
            io::Error::new(
                fault.kind(),
                format!("static_path {}: {fault}", folder.display()),
            )
        })?;
        Ok(Self { root })
    }

    #[allow(clippy::unused_async)] // all modes have the same shape
    pub(crate) async fn handle_call(&self, call: ModeCall) -> Result<ModeResponse, PlatformError> {
        let request = call.request;
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let fault = watchdog_error(Reason::MethodNotAllowed, "files are read with GET or HEAD")
                .governed_by("mode");
            let mut response = errors::error_response(&fault);
            response
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return Ok(ModeResponse::Plain(response));
        }
        let path = request.uri().path();
        let response = match self.find_file(path)? {
            FileLookup::AddSlash => redirect_to_folder(path)?,
            FileLookup::File(found) => {
                file_response(found, request.method() == Method::HEAD, request.headers())
            }
        };
        Ok(ModeResponse::Plain(response))
    }

    fn find_file(&self, path: &str) -> Result<FileLookup, PlatformError> {
        // The same response for every failure, so that it tells nothing about the files.
        let missing =
            || watchdog_error(Reason::NotFound, "no such file").governed_by("static_path");
        let name = decode_path(path).ok_or_else(missing)?;
        let relative = name.trim_start_matches('/');
        let (file, is_folder) = self
            .open_beneath(if relative.is_empty() { "." } else { relative })
            .map_err(|_| missing())?;
        if !is_folder {
            return Ok(FileLookup::File(
                StaticFile::new(file, relative).map_err(|_| missing())?,
            ));
        }
        if !name.ends_with('/') {
            return Ok(FileLookup::AddSlash);
        }
        let index = format!("{relative}index.html");
        let (file, is_folder) = self.open_beneath(&index).map_err(|_| missing())?;
        // A folder named `index.html` is no page.
        if is_folder {
            Err(missing())
        } else {
            Ok(FileLookup::File(
                StaticFile::new(file, &index).map_err(|_| missing())?,
            ))
        }
    }

    /// Opens a path below the root. Pipes and devices are refused, without waiting for them.
    fn open_beneath(&self, relative: &str) -> io::Result<(File, bool)> {
        // `O_NONBLOCK`, because opening a pipe waits for its writer; `O_NOCTTY`, so that no
        // terminal is acquired.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        // `BENEATH` covers `..` and symbolic links, `NO_MAGICLINKS` the links in /proc
        // (openat2(2)).
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file = File::from(openat2(
            &self.root,
            relative,
            flags,
            FileMode::empty(),
            resolve,
        )?);
        let metadata = file.metadata()?;
        if !metadata.is_file() && !metadata.is_dir() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok((file, metadata.is_dir()))
    }
}

impl StaticFile {
    fn new(file: File, name: &str) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let ending = name
            .rsplit_once('.')
            .map(|(_, ending)| ending.to_ascii_lowercase())
            .unwrap_or_default();
        let known = CONTENT_TYPES.binary_search_by_key(&ending.as_str(), |(name, _)| name);
        Ok(Self {
            length: metadata.len(),
            modified: metadata.modified()?,
            // A weak tag: made of size and time, not of the content.
            etag: format!(
                "W/\"{:x}-{:x}.{:x}\"",
                metadata.len(),
                metadata.mtime(),
                metadata.mtime_nsec()
            ),
            content_type: known.map_or("application/octet-stream", |at| CONTENT_TYPES[at].1),
            file,
        })
    }

    /// Returns whether the caller's copy is current (RFC 9110 section 13.1): the tag decides, else
    /// the date in whole seconds.
    fn is_unchanged(&self, headers: &HeaderMap) -> bool {
        if let Some(tags) = headers
            .get(IF_NONE_MATCH)
            .and_then(|value| value.to_str().ok())
        {
            // Compared weakly (RFC 9110 section 13.1.2), so `W/` does not count.
            let bare = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
            return tags.trim() == "*" || tags.split(',').any(|tag| bare(tag) == bare(&self.etag));
        }
        let since = headers
            .get(IF_MODIFIED_SINCE)
            .and_then(|value| value.to_str().ok());
        let since = since.and_then(|text| httpdate::parse_http_date(text).ok());
        // HTTP dates have whole seconds, so a change within the same second goes unnoticed.
        since.is_some_and(|since| self.modified < since + Duration::from_secs(1))
    }
}

fn file_response(
    found: StaticFile,
    head_only: bool,
    request_headers: &HeaderMap,
) -> Response<WatchdogBody> {
    let unchanged = found.is_unchanged(request_headers);
    let mut response = Response::new(WatchdogBody::empty());
    let headers = response.headers_mut();
    let text = |text: String| HeaderValue::try_from(text).expect("digits, letters and quotes");
    // With a 304 as well, as RFC 9110 section 15.4.5 demands.
    headers.insert(ETAG, text(found.etag.clone()));
    headers.insert(LAST_MODIFIED, text(httpdate::fmt_http_date(found.modified)));
    if unchanged {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return response;
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(found.content_type));
    headers.insert(CONTENT_LENGTH, found.length.into());
    if !head_only {
        *response.body_mut() = file_body(found);
    }
    response
}

/// Returns the file's bytes as a stream. A file that shrinks meanwhile breaks the response.
fn file_body(found: StaticFile) -> WatchdogBody {
    let StaticFile { file, length, .. } = found;
    let stream =
        stream::try_unfold(0, move |at| {
            let read = if at == length {
                Ok(None)
            } else {
                read_chunk(&file, at, length).map(Some)
            };
            std::future::ready(read.map(|bytes| {
                bytes.map(|bytes| (Frame::data(bytes.clone()), at + bytes.len() as u64))
            }))
        });
    WatchdogBody::from_stream(StreamBody::new(stream))
}

fn read_chunk(file: &File, at: u64, length: u64) -> Result<Bytes, AnyError> {
    let mut bytes = vec![0; CHUNK_BYTES.min(length - at) as usize];
    match file.read_at(&mut bytes, at)? {
        // The length was sent already, so a shorter file must not end cleanly.
        0 => Err("the file became shorter while it was sent".into()),
        n => Ok(Bytes::from(bytes).slice(..n)),
    }
}

/// Redirects to the same path with a slash. A path with two leading slashes would name another
/// host.
fn redirect_to_folder(path: &str) -> Result<Response<WatchdogBody>, PlatformError> {
    let invalid = |_| watchdog_error(Reason::BadRequest, "the request's path is not valid");
    let target = format!("/{}/", path.trim_start_matches('/'));
    let mut response = Response::new(WatchdogBody::empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    response
        .headers_mut()
        .insert(LOCATION, HeaderValue::try_from(target).map_err(invalid)?);
    Ok(response)
}

/// Undoes percent-encoding. `None`: not UTF-8, not well formed, or with a NUL.
pub fn decode_path(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| (byte? as char).to_digit(16);
                let (high, low) = (digit(rest.next())?, digit(rest.next())?);
                u8::try_from(high * 16 + low).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes)
        .ok()
        .filter(|path| !path.contains('\0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn endings_are_sorted_for_the_search() {
        assert!(CONTENT_TYPES.is_sorted_by_key(|(ending, _)| ending));
    }

    #[test]
    fn percent_encoding() {
        assert_eq!(decode_path("/a%20b/%C3%A4").as_deref(), Some("/a b/ä"));
        for bad in ["/%", "/%2", "/%zz", "/%00", "/%ff"] {
            assert_eq!(decode_path(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn nothing_outside_is_opened(path in "(/|\\.|\\.\\.|%2e|%2f|a|secret){0,12}") {
            let top = tempfile::tempdir().unwrap();
            std::fs::write(top.path().join("secret"), "no").unwrap();
            let root = top.path().join("a");
            std::fs::create_dir(&root).unwrap();
            std::os::unix::fs::symlink(top.path().join("secret"), root.join("link")).unwrap();
            let files = StaticMode::new(&root).unwrap();
            prop_assert!(!matches!(files.find_file(&path), Ok(FileLookup::File(_))));
            prop_assert!(files.find_file("/link").is_err());
        }
    }
}
