//! What handlers read: bodies, query parameters, names in the path.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use bytes::Bytes;
use http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use nearpath_types::{FunctionId, Namespace, Reason};
use serde::de::{Deserialize, DeserializeOwned, Deserializer};

use super::MAX_BODY;
use super::refused::Refused;
use crate::controller::Controller;
use crate::model::Refusal;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// A JSON body. Unknown fields are ignored, the content type is not looked at: OpenFaaS's clients do not always send
/// one.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Json<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refused> {
        let bytes = read(request.into_body(), BODY_TIMEOUT).await?;
        parse(&bytes).map(Self).map_err(Refused::bad_request)
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    object(body)?;
    serde_json::from_slice(body).map_err(|error| explain(&error))
}

/// Every body is an object. A list would do for the parser, which takes its items for the fields in their order.
fn object(body: &[u8]) -> Result<(), String> {
    let found = match body.iter().find(|byte| !byte.is_ascii_whitespace()) {
        None => return Err("the body is empty: a JSON object is expected".to_owned()),
        Some(b'{') => return Ok(()),
        Some(b'[') => "a list",
        Some(b'"') => "a text",
        Some(_) => "something else",
    };
    Err(format!("the body is {found}: a JSON object, {{...}}, is expected"))
}

/// The parser's words, without the names of our own types.
fn explain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = match (text.split_once("expected struct "), text.rsplit_once(" at line ")) {
        (Some((before, _)), Some((_, place))) => format!("{before}expected an object at line {place}"),
        _ => text,
    };
    format!("the body is not as expected: {text}")
}

/// Like [`Json`], with an empty body read as `{}`.
pub(crate) struct OptionalJson<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for OptionalJson<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        let bytes = read(request.into_body(), BODY_TIMEOUT).await?;
        let body = if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes };
        Json::from_request(Request::new(Body::from(body)), state).await.map(|Json(value)| Self(value))
    }
}

async fn read(body: Body, at_most: Duration) -> Result<Bytes, Refused> {
    let collected = tokio::time::timeout(at_most, Limited::new(body, MAX_BODY).collect()).await;
    match collected {
        Err(_) => Err(Refused::new(Reason::SlowRequest, format!("the body took longer than {at_most:?}"))),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(Refused::new(Reason::BodyTooLarge, format!("the body is larger than {MAX_BODY} bytes")))
        }
        Ok(Err(error)) => Err(Refused::bad_request(format!("the body could not be read: {error}"))),
    }
}

/// Query parameters; of one that is given twice, the last counts. An empty value is as good as none.
pub(crate) struct Params(BTreeMap<String, String>);

impl<S: Sync> FromRequestParts<S> for Params {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Self(params)),
            Err(error) => Err(Refused::bad_request(format!("the query cannot be read: {error}"))),
        }
    }
}

impl Params {
    /// A parameter's value, unless it is empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The namespace that a listing is for; it has to exist.
    pub(crate) fn listed_namespace(&self, controller: &Controller) -> Result<Namespace, Refused> {
        let name = namespace(self.get("namespace"))?;
        match controller.model().has_namespace(&name) {
            true => Ok(name),
            false => Err(Refusal::NamespaceMissing(name).into()),
        }
    }
}

/// The `{name}` in the path.
pub(crate) struct Name(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Self(name)),
            Err(error) => Err(Refused::bad_request(format!("the path cannot be read: {error}"))),
        }
    }
}

/// A namespace that may be left out or empty.
pub(crate) fn namespace(text: Option<&str>) -> Result<Namespace, Refused> {
    match text {
        None | Some("") => Ok(Namespace::default()),
        Some(text) => Ok(text.parse()?),
    }
}

/// A function from `NAME` or `NAME.NAMESPACE` and a namespace given beside it. Two different namespaces are an error.
pub(crate) fn function_id(name: &str, beside: Option<&str>) -> Result<FunctionId, Refused> {
    let id: FunctionId = name.parse()?;
    match beside.filter(|text| !text.is_empty()) {
        None => Ok(id),
        Some(text) if !name.contains('.') => Ok(FunctionId { namespace: text.parse()?, ..id }),
        Some(text) if text == id.namespace.as_str() => Ok(id),
        Some(text) => Err(Refused::bad_request(format!("{name:?} contradicts the namespace {text:?} given beside it"))),
    }
}

/// Go clients write `null` for an empty map or text.
pub(crate) fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_that_stops_arriving_is_given_up() {
        let stalled = futures_util::stream::pending::<Result<Bytes, std::convert::Infallible>>();
        let refused = read(Body::from_stream(stalled), Duration::ZERO).await.unwrap_err();
        assert!(format!("{refused:?}").contains("SlowRequest"), "{refused:?}");
    }

    #[test]
    fn a_body_of_another_shape_is_told_in_words_of_the_api() {
        for (body, wanted) in [
            (" ", "the body is empty: a JSON object is expected"),
            ("[]", "the body is a list: a JSON object, {...}, is expected"),
            ("[\"echo\"]", "the body is a list"),
            ("\"echo\"", "the body is a text"),
            ("7", "the body is something else"),
            ("{\"service\":\"a\",\"limits\":7}", "expected an object at line 1"),
            ("{}", "missing field `service`"),
        ] {
            let text = parse::<nearpath_types::FunctionSpec>(body.as_bytes()).unwrap_err();
            assert!(text.contains(wanted) && !text.contains("struct"), "{body}: {text}");
        }
    }

    #[test]
    fn a_function_has_one_namespace() {
        let id = |name, beside| function_id(name, beside).map(|id| id.to_string()).ok();
        assert_eq!(id("echo", None).as_deref(), Some("echo.openfaas-fn"));
        assert_eq!(id("echo", Some("")).as_deref(), Some("echo.openfaas-fn"));
        assert_eq!(id("echo", Some("dev")).as_deref(), Some("echo.dev"));
        assert_eq!(id("echo.dev", Some("dev")).as_deref(), Some("echo.dev"));
        assert_eq!(id("echo.dev", Some("ops")), None);
        assert_eq!(id("Echo_1", None), None);
    }
}
