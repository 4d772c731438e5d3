//! Input of handlers: bodies, query parameters, names in the path.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use bytes::Bytes;
use http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use nearpath_types::{FunctionId, Namespace, Reason};
use serde::de::{Deserialize, DeserializeOwned, Deserializer};
use serde_json::{Map, Value};

use super::MAX_BODY_BYTES;
use super::api_error::ApiError;
use crate::controller::Controller;
use crate::model::CommandRefusal;

/// Time for a body to arrive. Bodies have at most 1 MiB, so only a stalled client needs longer.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// A JSON body. Unknown fields and the content type are ignored, because OpenFaaS's clients do not
/// always send one.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let bytes = read_body(request.into_body(), BODY_TIMEOUT).await?;
        parse_json(&bytes).map(Self).map_err(ApiError::bad_request)
    }
}

/// A JSON body of something in a namespace. The namespace may be in the query instead, where older
/// OpenFaaS clients send it.
///
/// A namespace that were ignored would make a command act on another function of the same name.
pub(crate) struct NamespacedBody<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for NamespacedBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let (mut parts, body) = request.into_parts();
        let params = QueryParams::from_request_parts(&mut parts, state).await?;
        let bytes = read_body(body, BODY_TIMEOUT).await?;
        let value = parse_json(&bytes).map_err(ApiError::bad_request)?;
        match params.get("namespace") {
            None => Ok(Self(value)),
            Some(namespace) => parse_in_namespace(&bytes, namespace).map(Self),
        }
    }
}

/// Parses an object as if it held `namespace`. A different namespace in it is an error.
fn parse_in_namespace<T: DeserializeOwned>(body: &[u8], namespace: &str) -> Result<T, ApiError> {
    let fields: Result<Map<String, Value>, _> = serde_json::from_slice(body);
    let mut fields = fields.map_err(|error| ApiError::bad_request(explain_json_error(&error)))?;
    match fields.get("namespace").and_then(Value::as_str) {
        None | Some("") => {}
        Some(same) if same == namespace => {}
        Some(other) => {
            return Err(ApiError::bad_request(format!(
                "namespace {other:?} in the body contradicts {namespace:?} in the query"
            )));
        }
    }
    fields.insert("namespace".to_owned(), namespace.into());
    serde_json::from_value(fields.into())
        .map_err(|error| ApiError::bad_request(explain_json_error(&error)))
}

fn parse_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    check_object(body)?;
    serde_json::from_slice(body).map_err(|error| explain_json_error(&error))
}

/// Requires an object. The parser would also accept a list and take its items for the fields in
/// order.
fn check_object(body: &[u8]) -> Result<(), String> {
    let found = match body.iter().find(|byte| !byte.is_ascii_whitespace()) {
        None => return Err("the body is empty: a JSON object is expected".to_owned()),
        Some(b'{') => return Ok(()),
        Some(b'[') => "a list",
        Some(b'"') => "a text",
        Some(_) => "something else",
    };
    Err(format!(
        "the body is {found}: a JSON object, {{...}}, is expected"
    ))
}

/// Error text of the parser, without names of internal types.
fn explain_json_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = match (
        text.split_once("expected struct "),
        text.rsplit_once(" at line "),
    ) {
        (Some((before, _)), Some((_, place))) => {
            format!("{before}expected an object at line {place}")
        }
        _ => text,
    };
    format!("invalid body: {text}")
}

/// Like [`JsonBody`]; an empty body is read as `{}`.
pub(crate) struct OptionalJsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for OptionalJsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = read_body(request.into_body(), BODY_TIMEOUT).await?;
        let body = if bytes.is_empty() {
            Bytes::from_static(b"{}")
        } else {
            bytes
        };
        JsonBody::from_request(Request::new(Body::from(body)), state)
            .await
            .map(|JsonBody(value)| Self(value))
    }
}

async fn read_body(body: Body, time_limit: Duration) -> Result<Bytes, ApiError> {
    // The size limit counts while reading: `Content-Length` may be missing or wrong.
    let collected =
        tokio::time::timeout(time_limit, Limited::new(body, MAX_BODY_BYTES).collect()).await;
    match collected {
        Err(_) => Err(ApiError::new(
            Reason::SlowRequest,
            format!("the body took longer than {time_limit:?}"),
        )),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::new(
            Reason::BodyTooLarge,
            format!("the body is larger than {MAX_BODY_BYTES} bytes"),
        )),
        Ok(Err(error)) => Err(ApiError::bad_request(format!(
            "the body could not be read: {error}"
        ))),
    }
}

/// Query parameters; the last of equal ones counts. An empty value counts as missing.
pub(crate) struct QueryParams(BTreeMap<String, String>);

impl<S: Sync> FromRequestParts<S> for QueryParams {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Self(params)),
            Err(error) => Err(ApiError::bad_request(format!(
                "the query cannot be read: {error}"
            ))),
        }
    }
}

impl QueryParams {
    /// Value of a parameter, unless it is empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// Returns whether a flag is set.
    pub(crate) fn has_flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some("1" | "true"))
    }

    /// Namespace of a listing; it must exist.
    pub(crate) fn listed_namespace(&self, controller: &Controller) -> Result<Namespace, ApiError> {
        let name = parse_namespace(self.get("namespace"))?;
        match controller.model().has_namespace(&name) {
            true => Ok(name),
            false => Err(CommandRefusal::UnknownNamespace(name).into()),
        }
    }
}

/// `{name}` in the path.
pub(crate) struct PathName(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for PathName {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Self(name)),
            Err(error) => Err(ApiError::bad_request(format!(
                "the path cannot be read: {error}"
            ))),
        }
    }
}

/// Reads a namespace, which may be missing or empty.
pub(crate) fn parse_namespace(text: Option<&str>) -> Result<Namespace, ApiError> {
    match text {
        None | Some("") => Ok(Namespace::default()),
        Some(text) => Ok(text.parse()?),
    }
}

/// Reads a function from `NAME` or `NAME.NAMESPACE` and a separate namespace. Two different
/// namespaces are an error.
pub(crate) fn parse_function_id(
    name: &str,
    explicit_namespace: Option<&str>,
) -> Result<FunctionId, ApiError> {
    let id: FunctionId = name.parse()?;
    match explicit_namespace.filter(|text| !text.is_empty()) {
        None => Ok(id),
        Some(text) if !name.contains('.') => Ok(FunctionId {
            namespace: text.parse()?,
            ..id
        }),
        // OpenFaaS's clients often send both; that is no contradiction.
        Some(text) if text == id.namespace.as_str() => Ok(id),
        Some(text) => Err(ApiError::bad_request(format!(
            "{name:?} contradicts the separate namespace {text:?}"
        ))),
    }
}

/// Reads `null` as the default: Go clients write it for an empty map or text.
pub(crate) fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_that_stalls_is_refused() {
        let stalled = futures_util::stream::pending::<Result<Bytes, std::convert::Infallible>>();
        let error = read_body(Body::from_stream(stalled), Duration::ZERO)
            .await
            .unwrap_err();
        assert!(format!("{error:?}").contains("SlowRequest"), "{error:?}");
    }

    #[test]
    fn errors_of_the_body_name_no_internal_types() {
        for (body, wanted) in [
            (" ", "the body is empty: a JSON object is expected"),
            (
                "[]",
                "the body is a list: a JSON object, {...}, is expected",
            ),
            ("[\"echo\"]", "the body is a list"),
            ("\"echo\"", "the body is a text"),
            ("7", "the body is something else"),
            (
                "{\"service\":\"a\",\"limits\":7}",
                "expected an object at line 1",
            ),
            ("{}", "missing field `service`"),
        ] {
            let text = parse_json::<nearpath_types::FunctionSpec>(body.as_bytes()).unwrap_err();
            assert!(
                text.contains(wanted) && !text.contains("struct"),
                "{body}: {text}"
            );
        }
    }

    #[test]
    fn a_function_has_one_namespace() {
        let id = |name, namespace| {
            parse_function_id(name, namespace)
                .map(|id| id.to_string())
                .ok()
        };
        assert_eq!(id("echo", None).as_deref(), Some("echo.openfaas-fn"));
        assert_eq!(id("echo", Some("")).as_deref(), Some("echo.openfaas-fn"));
        assert_eq!(id("echo", Some("dev")).as_deref(), Some("echo.dev"));
        assert_eq!(id("echo.dev", Some("dev")).as_deref(), Some("echo.dev"));
        assert_eq!(id("echo.dev", Some("ops")), None);
        assert_eq!(id("Echo_1", None), None);
    }
}
