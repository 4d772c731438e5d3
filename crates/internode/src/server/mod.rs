//! Service for other nodes: this node's state, and pings.

mod cursor;
mod direct_stream;
mod drain_wait;
mod handover_wait;
mod state_stream;
mod stream_responses;
mod subscribers;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use nearpath_types::NodeName;
use nearpath_types::direct::DirectNode;
use nearpath_wire::Body;
use tokio::sync::watch;

use crate::local_state::LocalState;
use crate::protocol::{
    AppliedReport, DIRECT_PATH, PING_PATH, PingResponse, STATE_CONTENT_TYPE, STATE_PATH,
};

use direct_stream::direct_body;
use state_stream::state_body;
pub use stream_responses::{parse_stream_request, stream_accepted, stream_refused};
use subscribers::SubscriberTable;
pub use subscribers::{MAX_PEER_SUBSCRIBERS, MAX_SUBSCRIBERS};

/// Server of the paths under `/node/`, for peers whose certificates were checked.
#[derive(Debug, Clone)]
pub struct StateServer {
    states: watch::Receiver<Arc<LocalState>>,
    subscribers: Arc<SubscriberTable>,
    direct: watch::Receiver<Arc<DirectNode>>,
    /// Apart from those of states: a node has one of each.
    direct_subscribers: Arc<SubscriberTable>,
}

impl StateServer {
    /// Creates a server of the newest of `states`, and of directly callable instances. Its streams
    /// end when the senders are dropped.
    pub fn new(
        states: watch::Receiver<Arc<LocalState>>,
        direct: watch::Receiver<Arc<DirectNode>>,
    ) -> Self {
        Self {
            states,
            subscribers: Arc::default(),
            direct,
            direct_subscribers: Arc::default(),
        }
    }

    /// Returns whether this server has something at a path.
    pub fn has_path(path: &str) -> bool {
        matches!(path, STATE_PATH | PING_PATH | DIRECT_PATH)
    }

    /// Responds to a request of the node `peer`. The body of a state stream needs a tokio runtime.
    pub async fn respond(&self, peer: &NodeName, request: Request<Body>) -> Response<Body> {
        let path = request.uri().path();
        match (request.method(), path) {
            (&Method::GET, STATE_PATH) => self.state_response(peer),
            (&Method::GET, DIRECT_PATH) => self.direct_response(peer),
            (&Method::GET, PING_PATH) => {
                self.note_report(peer, request.uri().query().unwrap_or_default());
                self.ping_response()
            }
            (_, STATE_PATH | PING_PATH | DIRECT_PATH) => method_response(),
            _ => {
                let text =
                    format!("not found: expected {STATE_PATH}, {PING_PATH} or {DIRECT_PATH}\n");
                text_response(StatusCode::NOT_FOUND, text)
            }
        }
    }

    fn state_response(&self, peer: &NodeName) -> Response<Body> {
        let Some(permit) = self.subscribers.admit(peer) else {
            return full_response();
        };
        let body = state_body(self.states.clone(), permit);
        typed_response(StatusCode::OK, STATE_CONTENT_TYPE, body)
    }

    fn direct_response(&self, peer: &NodeName) -> Response<Body> {
        let Some(permit) = self.direct_subscribers.admit(peer) else {
            return full_response();
        };
        let body = direct_body(self.direct.clone(), permit);
        typed_response(StatusCode::OK, STATE_CONTENT_TYPE, body)
    }

    /// Notes what the routes of a node reflect. Reports about another run of this node tell only that its
    /// calls go to the process that has replaced this one.
    fn note_report(&self, peer: &NodeName, query: &str) {
        let own = self.states.borrow().facts().incarnation;
        match AppliedReport::parse_query(query) {
            Some(report) if report.incarnation == own => {
                self.subscribers.note_report(peer, report.is_draining);
            }
            Some(_) => self.subscribers.note_followed(peer),
            None => {}
        }
    }

    fn ping_response(&self) -> Response<Body> {
        let incarnation = self.states.borrow().facts().incarnation;
        let response = PingResponse {
            time: unix_micros(),
            incarnation,
        };
        let text = serde_json::to_string(&response).expect("numbers and texts are JSON");
        typed_response(StatusCode::OK, "application/json", Body::from(text))
    }
}

/// Returns the machine's time in microseconds since 1970.
pub(crate) fn unix_micros() -> u64 {
    // A clock before 1970 is as wrong as one in 1970.
    let since_1970 = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX)
}

fn full_response() -> Response<Body> {
    let text = format!("{MAX_SUBSCRIBERS} nodes subscribe to this one: no more can\n");
    text_response(StatusCode::SERVICE_UNAVAILABLE, text)
}

fn method_response() -> Response<Body> {
    let text = "only GET\n".to_owned();
    let mut response = text_response(StatusCode::METHOD_NOT_ALLOWED, text);
    let allowed = HeaderValue::from_static("GET");
    response.headers_mut().insert(header::ALLOW, allowed);
    response
}

fn text_response(status: StatusCode, text: String) -> Response<Body> {
    typed_response(status, "text/plain; charset=utf-8", Body::from(text))
}

fn typed_response(status: StatusCode, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    response
}
