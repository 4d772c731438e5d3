//! HTTP's heads as the call protocol writes them, and back.

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use nearpath_types::head::{BadHead, Field, Fields, MAX_FIELDS, MAX_HEAD};

use super::frame::{Answered, Asked, Fault, Opening};

const METHOD: &str = ":method";
const PATH: &str = ":path";
const AUTHORITY: &str = ":authority";

/// Writes opening and head of a request.
pub(super) fn write_asked(asked: &Asked, head: &http::request::Parts, out: &mut BytesMut) -> Result<(), BadHead> {
    write(asked, out, |out| {
        append(METHOD, head.method.as_str().as_bytes(), out)?;
        append(PATH, head.uri.path_and_query().map_or("/", |path| path.as_str()).as_bytes(), out)?;
        if let Some(authority) = head.uri.authority() {
            append(AUTHORITY, authority.as_str().as_bytes(), out)?;
        }
        fields(&head.headers, out, 3)
    })
}

/// Writes opening and head of an answer.
pub(super) fn write_answered(answered: &Answered, headers: &HeaderMap, out: &mut BytesMut) -> Result<(), BadHead> {
    write(answered, out, |out| fields(headers, out, 0))
}

/// The trailers, without what is before them.
pub(super) fn write_trailers(trailers: &HeaderMap) -> Result<BytesMut, BadHead> {
    let mut out = BytesMut::new();
    fields(trailers, &mut out, 0)?;
    Ok(out)
}

/// The opening holds the head's length, which is known after it: so it is written twice.
fn write<O: Opening>(
    opening: &O,
    out: &mut BytesMut,
    head: impl FnOnce(&mut BytesMut) -> Result<(), BadHead>,
) -> Result<(), BadHead> {
    let begin = out.len();
    out.put_bytes(0, O::SIZE);
    head(out)?;
    let length = u32::try_from(out.len() - begin - O::SIZE).ok().filter(|length| *length <= MAX_HEAD);
    let mut first = BytesMut::with_capacity(O::SIZE);
    opening.write(length.ok_or(BadHead::TooMany)?, &mut first);
    out[begin..begin + O::SIZE].copy_from_slice(&first);
    Ok(())
}

fn fields(headers: &HeaderMap, out: &mut BytesMut, before: usize) -> Result<(), BadHead> {
    if headers.len() + before > MAX_FIELDS {
        return Err(BadHead::TooMany);
    }
    headers.iter().try_for_each(|(name, value)| append(name.as_str(), value.as_bytes(), out))
}

fn append(name: &str, value: &[u8], out: &mut BytesMut) -> Result<(), BadHead> {
    let field = Field::new(name.as_bytes(), value)?;
    out.put_slice(&field.lengths()?);
    out.put_slice(name.as_bytes());
    out.put_slice(value);
    Ok(())
}

/// A request of a head that was checked.
pub(super) fn request(head: &Bytes) -> Result<Request<()>, Fault> {
    let own = |name| Fields::new(head).get(name);
    let method = own(METHOD).and_then(|method| Method::from_bytes(method).ok()).ok_or(BadHead::Value)?;
    let path = own(PATH).ok_or(BadHead::Value)?;
    let mut uri = http::uri::Parts::default();
    uri.path_and_query = Some(path.try_into().map_err(|_| BadHead::Value)?);
    if let Some(authority) = own(AUTHORITY) {
        uri.authority = Some(authority.try_into().map_err(|_| BadHead::Value)?);
        uri.scheme = Some(http::uri::Scheme::HTTPS);
    }
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = Uri::from_parts(uri).map_err(|_| BadHead::Value)?;
    *request.headers_mut() = headers(head)?;
    Ok(request)
}

/// An answer of a head that was checked.
pub(super) fn response(answered: &Answered, head: &Bytes) -> Result<Response<()>, Fault> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(answered.status).map_err(|_| Fault::Status(answered.status))?;
    *response.headers_mut() = headers(head)?;
    Ok(response)
}

/// The fields that HTTP has, too. Values lie where the head lies.
pub(super) fn headers(head: &Bytes) -> Result<HeaderMap, Fault> {
    let mut map = HeaderMap::new();
    for field in Fields::new(head) {
        let field = field?;
        if field.name.starts_with(':') {
            continue;
        }
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| BadHead::Name)?;
        let value = HeaderValue::from_maybe_shared(head.slice_ref(field.value)).map_err(|_| BadHead::Value)?;
        map.append(name, value);
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::super::frame::{Decoder, Piece, UNKNOWN};
    use super::*;

    const ASKED: Asked = Asked { event: false, total: UNKNOWN, patience: 0, trace: [0; 16], span: [0; 8] };

    #[test]
    fn a_request_there_and_back() {
        let request_of =
            |uri: &str| Request::builder().method("PATCH").uri(uri).header("a", "1").header("a", "2").body(());
        for uri in ["/path?query=%20", "/", "https://shop.example/path"] {
            let (parts, ()) = request_of(uri).unwrap().into_parts();
            let mut decoder = Decoder::<Asked>::new();
            write_asked(&ASKED, &parts, decoder.held()).unwrap();
            let Some(Piece::Opening(asked, head)) = decoder.piece().unwrap() else { panic!() };
            let read = request(&head).unwrap();
            assert_eq!((asked, read.method(), read.uri().to_string()), (ASKED, &Method::PATCH, uri.to_owned()));
            assert_eq!(read.headers().get_all("a").iter().collect::<Vec<_>>(), ["1", "2"]);
        }
    }

    #[test]
    fn what_is_no_request() {
        for fields in [
            &[][..],
            &[(METHOD, "GET")],
            &[(PATH, "/")],
            &[(METHOD, "G T"), (PATH, "/")],
            &[(METHOD, "GET"), (PATH, "a b")],
        ] {
            let mut head = BytesMut::new();
            fields.iter().try_for_each(|(name, value)| append(name, value.as_bytes(), &mut head)).unwrap();
            assert_eq!(request(&head.freeze()).unwrap_err(), Fault::Head(BadHead::Value), "{fields:?}");
        }
    }

    #[test]
    fn heads_are_bounded() {
        let large =
            HeaderMap::from_iter([(HeaderName::from_static("a"), HeaderValue::from_bytes(&[b'v'; 65_535]).unwrap())]);
        let answered = Answered { platform: false, status: 200, reason: 0, total: 0 };
        assert_eq!(write_answered(&answered, &large, &mut BytesMut::new()), Err(BadHead::TooMany));
        let many: HeaderMap =
            (0..257).map(|k| (HeaderName::try_from(format!("a{k}")).unwrap(), HeaderValue::from_static("v"))).collect();
        assert_eq!(write_answered(&answered, &many, &mut BytesMut::new()), Err(BadHead::TooMany));
    }
}
