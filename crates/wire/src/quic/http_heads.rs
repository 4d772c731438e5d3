//! Conversion of HTTP heads to the call protocol and back.

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use nearpath_types::head::{HeadError, HeadField, HeadFields, MAX_FIELDS, MAX_HEAD_BYTES};

use super::frame::{CallOpening, FrameError, RequestOpening, ResponseOpening};

const METHOD: &str = ":method";
const PATH: &str = ":path";
const AUTHORITY: &str = ":authority";

/// Writes opening and head of a request.
pub(super) fn write_request_head(
    opening: &RequestOpening,
    head: &http::request::Parts,
    out: &mut BytesMut,
) -> Result<(), HeadError> {
    write_opening_and_head(opening, out, |out| {
        append_field(METHOD, head.method.as_str().as_bytes(), out)?;
        append_field(
            PATH,
            head.uri
                .path_and_query()
                .map_or("/", |path| path.as_str())
                .as_bytes(),
            out,
        )?;
        if let Some(authority) = head.uri.authority() {
            append_field(AUTHORITY, authority.as_str().as_bytes(), out)?;
        }
        append_fields(&head.headers, out, 3)
    })
}

/// Writes opening and head of a response.
pub(super) fn write_response_head(
    opening: &ResponseOpening,
    headers: &HeaderMap,
    out: &mut BytesMut,
) -> Result<(), HeadError> {
    write_opening_and_head(opening, out, |out| append_fields(headers, out, 0))
}

/// Encodes the trailers without their frame header.
pub(super) fn write_trailers(trailers: &HeaderMap) -> Result<BytesMut, HeadError> {
    let mut out = BytesMut::new();
    append_fields(trailers, &mut out, 0)?;
    Ok(out)
}

/// Writes a placeholder, the head, then the opening: the opening holds the head's length.
fn write_opening_and_head<O: CallOpening>(
    opening: &O,
    out: &mut BytesMut,
    head: impl FnOnce(&mut BytesMut) -> Result<(), HeadError>,
) -> Result<(), HeadError> {
    // The buffer may hold other data already.
    let begin = out.len();
    out.put_bytes(0, O::SIZE_BYTES);
    head(out)?;
    let length = u32::try_from(out.len() - begin - O::SIZE_BYTES)
        .ok()
        .filter(|length| *length <= MAX_HEAD_BYTES);
    let mut first = BytesMut::with_capacity(O::SIZE_BYTES);
    opening.write_to(length.ok_or(HeadError::TooMany)?, &mut first);
    out[begin..begin + O::SIZE_BYTES].copy_from_slice(&first);
    Ok(())
}

fn append_fields(headers: &HeaderMap, out: &mut BytesMut, before: usize) -> Result<(), HeadError> {
    // Checked before writing: the peer would refuse the head, and the call would be lost.
    if headers.len() + before > MAX_FIELDS {
        return Err(HeadError::TooMany);
    }
    headers
        .iter()
        .try_for_each(|(name, value)| append_field(name.as_str(), value.as_bytes(), out))
}

fn append_field(name: &str, value: &[u8], out: &mut BytesMut) -> Result<(), HeadError> {
    let field = HeadField::new(name.as_bytes(), value)?;
    out.put_slice(&field.length_prefix()?);
    out.put_slice(name.as_bytes());
    out.put_slice(value);
    Ok(())
}

/// Converts a checked head to a request.
pub(super) fn parse_request(head: &Bytes) -> Result<Request<()>, FrameError> {
    let pseudo_header = |name| HeadFields::new(head).get(name);
    let method = pseudo_header(METHOD)
        .and_then(|method| Method::from_bytes(method).ok())
        .ok_or(HeadError::Value)?;
    let path = pseudo_header(PATH).ok_or(HeadError::Value)?;
    let mut uri = http::uri::Parts::default();
    uri.path_and_query = Some(path.try_into().map_err(|_| HeadError::Value)?);
    if let Some(authority) = pseudo_header(AUTHORITY) {
        uri.authority = Some(authority.try_into().map_err(|_| HeadError::Value)?);
        // `http` refuses an authority without a scheme; the connection is encrypted.
        uri.scheme = Some(http::uri::Scheme::HTTPS);
    }
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = Uri::from_parts(uri).map_err(|_| HeadError::Value)?;
    *request.headers_mut() = parse_headers(head)?;
    Ok(request)
}

/// Converts a checked head to a response.
pub(super) fn parse_response(
    opening: &ResponseOpening,
    head: &Bytes,
) -> Result<Response<()>, FrameError> {
    let mut response = Response::new(());
    *response.status_mut() =
        StatusCode::from_u16(opening.status).map_err(|_| FrameError::Status(opening.status))?;
    *response.headers_mut() = parse_headers(head)?;
    Ok(response)
}

/// Converts the fields that are not pseudo-headers. Values share the head's memory.
pub(super) fn parse_headers(head: &Bytes) -> Result<HeaderMap, FrameError> {
    let mut map = HeaderMap::new();
    for field in HeadFields::new(head) {
        let field = field?;
        // Pseudo-headers are no valid header names in HTTP.
        if field.name.starts_with(':') {
            continue;
        }
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| HeadError::Name)?;
        let value = HeaderValue::from_maybe_shared(head.slice_ref(field.value))
            .map_err(|_| HeadError::Value)?;
        map.append(name, value);
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::super::frame::{FrameDecoder, StreamPiece, UNKNOWN_LENGTH};
    use super::*;

    const OPENING: RequestOpening = RequestOpening {
        is_event: false,
        body_length: UNKNOWN_LENGTH,
        timeout_nanos: 0,
        trace_id: [0; 16],
        span_id: [0; 8],
    };

    #[test]
    fn a_request_is_read_as_written() {
        let request_of = |uri: &str| {
            Request::builder()
                .method("PATCH")
                .uri(uri)
                .header("a", "1")
                .header("a", "2")
                .body(())
        };
        for uri in ["/path?query=%20", "/", "https://shop.example/path"] {
            let (parts, ()) = request_of(uri).unwrap().into_parts();
            let mut decoder = FrameDecoder::<RequestOpening>::new();
            write_request_head(&OPENING, &parts, decoder.buffer_mut()).unwrap();
            let Some(StreamPiece::Opening(opening, head)) = decoder.next_piece().unwrap() else {
                panic!()
            };
            let read = parse_request(&head).unwrap();
            assert_eq!(
                (opening, read.method(), read.uri().to_string()),
                (OPENING, &Method::PATCH, uri.to_owned())
            );
            assert_eq!(
                read.headers().get_all("a").iter().collect::<Vec<_>>(),
                ["1", "2"]
            );
        }
    }

    #[test]
    fn heads_without_method_or_path_are_rejected() {
        for fields in [
            &[][..],
            &[(METHOD, "GET")],
            &[(PATH, "/")],
            &[(METHOD, "G T"), (PATH, "/")],
            &[(METHOD, "GET"), (PATH, "a b")],
        ] {
            let mut head = BytesMut::new();
            fields
                .iter()
                .try_for_each(|(name, value)| append_field(name, value.as_bytes(), &mut head))
                .unwrap();
            assert_eq!(
                parse_request(&head.freeze()).unwrap_err(),
                FrameError::Head(HeadError::Value),
                "{fields:?}"
            );
        }
    }

    #[test]
    fn heads_are_bounded() {
        let large = HeaderMap::from_iter([(
            HeaderName::from_static("a"),
            HeaderValue::from_bytes(&[b'v'; 65_535]).unwrap(),
        )]);
        let opening = ResponseOpening {
            is_platform: false,
            status: 200,
            reason_number: 0,
            body_length: 0,
        };
        assert_eq!(
            write_response_head(&opening, &large, &mut BytesMut::new()),
            Err(HeadError::TooMany)
        );
        let many: HeaderMap = (0..257)
            .map(|k| {
                (
                    HeaderName::try_from(format!("a{k}")).unwrap(),
                    HeaderValue::from_static("v"),
                )
            })
            .collect();
        assert_eq!(
            write_response_head(&opening, &many, &mut BytesMut::new()),
            Err(HeadError::TooMany)
        );
    }
}
