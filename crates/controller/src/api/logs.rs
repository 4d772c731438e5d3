//! `GET /system/logs`: output of instances, one JSON object per line, sent as it arrives.

use std::convert::Infallible;
use std::time::SystemTime;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use http::{HeaderMap, StatusCode, header};
use nearpath_types::instance_label::split_instance_label;
use nearpath_types::node_status::NODE_LOGS_PATH;
use nearpath_types::status::rfc3339;
use nearpath_types::{LogLine, LogQuery, NodeName, Reason};
use serde::Serialize;
use tokio::sync::mpsc;

use super::api_error::ApiError;
use super::extractors::{QueryParams, parse_function_id};
use super::log_follower::{PeerLog, follow_logs};
use super::peer_queries::{PeerReplies, ask_peers, missing_header};
use crate::controller::Controller;
use crate::merge::{label_line, merge_logs, missing_line};
use crate::model::CommandRefusal;

pub(crate) async fn stream_logs(
    State(it): State<Controller>,
    params: QueryParams,
) -> Result<Response, ApiError> {
    let query = parse_query(&params)?;
    if !it.model().functions.contains_key(&query.function) {
        return Err(CommandRefusal::NoFunction(query.function).into());
    }
    let selection = NodeSelection::new(&it, query);
    if selection.query.follow {
        return Ok(follow(&it, selection));
    }
    if it.inner.queried_peers().is_empty() {
        return Ok(stream_own(&it, selection));
    }
    Ok(read_all(&it, selection).await)
}

/// Answers another node: lines of this node alone, without its name. A function that this node does
/// not know has none.
pub(crate) async fn stream_local_logs(
    State(it): State<Controller>,
    params: QueryParams,
) -> Result<Response, ApiError> {
    let query = parse_query(&params)?;
    let is_known = it.model().functions.contains_key(&query.function);
    let lines = match is_known {
        true => it.inner.fleet.read_logs(query),
        false => mpsc::channel(1).1,
    };
    Ok(ndjson_response(HeaderMap::new(), receiver_stream(lines)))
}

/// Query with the nodes that it is about. An instance may be written with its node.
struct NodeSelection {
    query: LogQuery,
    has_own: bool,
    /// The only other node; `None`: all.
    peer: Option<String>,
}

impl NodeSelection {
    fn new(it: &Controller, query: LogQuery) -> Self {
        let label = query.instance.clone().unwrap_or_default();
        let (node, id) = split_instance_label(&label);
        let own = it.inner.node_name().map(NodeName::as_str);
        let instance = query.instance.as_ref().map(|_| id.to_owned());
        Self {
            query: LogQuery { instance, ..query },
            has_own: node.is_none() || node == own,
            peer: node.map(str::to_owned),
        }
    }

    fn has_peer(&self, node: &str) -> bool {
        self.peer.as_deref().is_none_or(|only| only == node)
    }

    /// Path of the query for another node.
    fn peer_path(&self) -> String {
        let query = &self.query;
        let mut path = format!(
            "{NODE_LOGS_PATH}?name={}&namespace={}&follow={}",
            query.function.name, query.function.namespace, query.follow
        );
        if let Some(tail) = query.tail {
            path += &format!("&tail={tail}");
        }
        if let Some(since) = query.since {
            path += &format!("&since={}", rfc3339::format_time(since));
        }
        // Other characters than these could end the parameter, and no id has them.
        let is_id = |id: &&String| id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        match &query.instance {
            Some(id) if is_id(&id) => path += &format!("&instance={id}"),
            Some(_) => path += "&instance=-",
            None => {}
        }
        path
    }
}

/// Streams the lines of this node, which has no others to ask.
fn stream_own(it: &Controller, selection: NodeSelection) -> Response {
    let own = it.inner.node_name().cloned();
    let lines = receiver_stream(own_lines(it, &selection));
    let labelled = lines.map(move |line| label_line(own.as_ref(), line));
    ndjson_response(HeaderMap::new(), labelled)
}

/// Reads the lines of all nodes, and sorts them by time.
async fn read_all(it: &Controller, selection: NodeSelection) -> Response {
    let (path, function) = (selection.peer_path(), &selection.query.function);
    let own = it.inner.node_name();
    let own_lines = receiver_stream(own_lines(it, &selection));
    let (peers, own_lines) = tokio::join!(
        ask_peers(it, &path, read_lines),
        own_lines.map(|line| label_line(own, line)).collect()
    );
    let PeerReplies {
        replies,
        mut missing,
    } = peers;
    missing.retain(|one| selection.has_peer(&one.node));
    let selected = replies
        .into_iter()
        .filter(|(node, _)| selection.has_peer(node.as_str()));
    let others = selected.map(|(node, lines)| {
        let labelled = lines.into_iter().map(|line| label_line(Some(&node), line));
        labelled.collect()
    });
    let nodes = std::iter::once(own_lines).chain(others).collect();
    let mut lines = merge_logs(nodes, selection.query.tail);
    let now = SystemTime::now();
    lines.extend(missing.iter().map(|one| missing_line(function, one, now)));
    ndjson_response(missing_header(&missing), stream::iter(lines))
}

fn follow(it: &Controller, selection: NodeSelection) -> Response {
    let peers = it.inner.queried_peers().into_iter();
    let peers = peers.filter(|node| selection.has_peer(node.as_str()));
    let logs = peers.filter_map(|node| {
        Some(PeerLog {
            node,
            path: selection.peer_path(),
            function: selection.query.function.clone(),
            peers: it.inner.peers()?.clone(),
        })
    });
    // A reader may stay for days: the stream must not keep the store open for so long.
    let lines = follow_logs(
        it.inner.node_name().cloned(),
        own_lines(it, &selection),
        logs.collect(),
    );
    ndjson_response(HeaderMap::new(), lines)
}

/// Returns this node's lines. A log that goes on ends when the function is removed, so its query
/// follows even if the lines of another node are wanted.
fn own_lines(it: &Controller, selection: &NodeSelection) -> mpsc::Receiver<LogLine> {
    let mut query = selection.query.clone();
    if !selection.has_own {
        // No instance has this id.
        query.instance = Some(String::new());
    }
    it.inner.fleet.read_logs(query)
}

fn read_lines(reply: &[u8]) -> Result<Vec<LogLine>, String> {
    let lines = reply.split(|byte| *byte == b'\n');
    // A line that a later release has changed is left out.
    let lines = lines.filter_map(|line| serde_json::from_slice(line).ok());
    Ok(lines.collect())
}

fn receiver_stream(mut lines: mpsc::Receiver<LogLine>) -> impl Stream<Item = LogLine> + Send {
    stream::poll_fn(move |context| lines.poll_recv(context))
}

fn ndjson_response<T: Serialize>(
    mut headers: HeaderMap,
    lines: impl Stream<Item = T> + Send + 'static,
) -> Response {
    let body = Body::from_stream(lines.map(|line| Ok::<_, Infallible>(to_ndjson(&line))));
    let content_type = header::HeaderValue::from_static("application/x-ndjson");
    headers.insert(header::CONTENT_TYPE, content_type);
    (headers, body).into_response()
}

fn to_ndjson(line: &impl Serialize) -> Bytes {
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
