//! `GET /system/logs`: output of instances, one JSON object per line, sent as it arrives.

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream;
use http::{StatusCode, header};
use nearpath_types::status::rfc3339;
use nearpath_types::{LogLine, LogQuery, Reason};

use super::api_error::ApiError;
use super::extractors::{QueryParams, parse_function_id};
use crate::controller::Controller;
use crate::model::CommandRefusal;

pub(crate) async fn stream_logs(
    State(it): State<Controller>,
    params: QueryParams,
) -> Result<Response, ApiError> {
    let query = parse_query(&params)?;
    if !it.model().functions.contains_key(&query.function) {
        return Err(CommandRefusal::NoFunction(query.function).into());
    }
    let mut lines = it.inner.fleet.read_logs(query);
    // A reader may stay for days: the handle must not keep the store open for so long.
    drop(it);
    let lines = stream::poll_fn(move |context| lines.poll_recv(context));
    let body =
        Body::from_stream(lines.map(|line| Ok::<_, std::convert::Infallible>(to_ndjson(&line))));
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

fn to_ndjson(line: &LogLine) -> Bytes {
    let mut text =
        serde_json::to_vec(line).expect("texts and a time can always be written as JSON");
    text.push(b'\n');
    text.into()
}

fn parse_query(params: &QueryParams) -> Result<LogQuery, ApiError> {
    let name = params
        .get("name")
        .ok_or_else(|| invalid_parameter("name is missing"))?;
    let function = parse_function_id(name, params.get("namespace")).map_err(unprocessable)?;
    Ok(LogQuery {
        function,
        instance: params.get("instance").map(str::to_owned),
        tail: parse_tail(params.get("tail"))?,
        since: params.get("since").map(parse_since).transpose()?,
        follow: params.get("follow").map_or(Ok(false), parse_follow)?,
    })
}

/// Reads the number of lines; 0 and below mean all, as in OpenFaaS.
fn parse_tail(text: Option<&str>) -> Result<Option<usize>, ApiError> {
    let number = text.map_or(Ok(-1), |text| {
        text.parse::<i64>()
            .map_err(|_| invalid_parameter(format!("tail: {text:?} is not a whole number")))
    })?;
    Ok(usize::try_from(number).ok().filter(|lines| *lines > 0))
}

fn parse_since(text: &str) -> Result<std::time::SystemTime, ApiError> {
    rfc3339::parse_time(text)
        .ok_or_else(|| invalid_parameter(format!("since: {text:?} is not an RFC 3339 time")))
}

/// Reads a boolean in the forms of Go's `ParseBool`, which OpenFaaS's clients write.
fn parse_follow(text: &str) -> Result<bool, ApiError> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(invalid_parameter(format!(
            "follow: {text:?} is neither true nor false"
        ))),
    }
}

fn invalid_parameter(why: impl Into<String>) -> ApiError {
    unprocessable(ApiError::new(Reason::BadRequest, why))
}

fn unprocessable(error: ApiError) -> ApiError {
    // OpenFaaS's log provider answers 422 for parameters that it cannot read.
    error.with_status(StatusCode::UNPROCESSABLE_ENTITY)
}
