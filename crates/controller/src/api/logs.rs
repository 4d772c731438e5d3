//! `GET /system/logs`: what instances wrote, one JSON object a line, sent as it comes.

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream;
use http::{StatusCode, header};
use nearpath_types::status::rfc3339;
use nearpath_types::{LogLine, LogQuery, Reason};

use super::input::{Params, function_id};
use super::refused::Refused;
use crate::controller::Controller;
use crate::model::Refusal;

pub(crate) async fn logs(State(it): State<Controller>, params: Params) -> Result<Response, Refused> {
    let query = query(&params)?;
    if !it.model().functions.contains_key(&query.function) {
        return Err(Refusal::NoFunction(query.function).into());
    }
    let mut lines = it.inner.fleet.logs(query);
    // The handle is kept by nobody: a reader that stays for days does not keep the store open.
    drop(it);
    let lines = stream::poll_fn(move |context| lines.poll_recv(context));
    let body = Body::from_stream(lines.map(|line| Ok::<_, std::convert::Infallible>(ndjson(&line))));
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

fn ndjson(line: &LogLine) -> Bytes {
    let mut text = serde_json::to_vec(line).expect("texts and a time can always be written as JSON");
    text.push(b'\n');
    text.into()
}

fn query(params: &Params) -> Result<LogQuery, Refused> {
    let name = params.get("name").ok_or_else(|| unreadable("name is missing"))?;
    let function = function_id(name, params.get("namespace")).map_err(unprocessable)?;
    Ok(LogQuery {
        function,
        instance: params.get("instance").map(str::to_owned),
        tail: tail(params.get("tail"))?,
        since: params.get("since").map(since).transpose()?,
        follow: params.get("follow").map_or(Ok(false), follow)?,
    })
}

/// 0 and below mean all, as OpenFaaS has it.
fn tail(text: Option<&str>) -> Result<Option<usize>, Refused> {
    let number = text.map_or(Ok(-1), |text| {
        text.parse::<i64>().map_err(|_| unreadable(format!("tail: {text:?} is not a whole number")))
    })?;
    Ok(usize::try_from(number).ok().filter(|lines| *lines > 0))
}

fn since(text: &str) -> Result<std::time::SystemTime, Refused> {
    rfc3339::parse(text).ok_or_else(|| unreadable(format!("since: {text:?} is not an RFC 3339 time")))
}

/// The words of Go's `ParseBool`, which OpenFaaS's clients write.
fn follow(text: &str) -> Result<bool, Refused> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(unreadable(format!("follow: {text:?} is neither true nor false"))),
    }
}

fn unreadable(why: impl Into<String>) -> Refused {
    unprocessable(Refused::new(Reason::BadRequest, why))
}

fn unprocessable(refused: Refused) -> Refused {
    refused.with_status(StatusCode::UNPROCESSABLE_ENTITY)
}
