//! What goes to JavaScript and comes from there.

use std::time::Duration;

use bytes::Bytes;
use napi::bindgen_prelude::Buffer;
use napi_derive::napi;
use nearpath::{CallOptions, Error, ErrorKind, HeaderFields, PublishReport, Request, Response};

/// How a call is made.
#[napi(object)]
#[derive(Debug)]
pub struct AskOfJs {
    /// POST unless told.
    pub method: Option<String>,
    /// `/` unless told.
    pub path: Option<String>,
    /// Names and values in turn.
    pub headers: Vec<String>,
    /// Milliseconds from now.
    pub deadline: Option<f64>,
    /// Running it twice does no harm.
    pub idempotent: Option<bool>,
    /// Shared memory or nothing.
    pub near_only: Option<bool>,
    /// The number of the call whose handler calls.
    pub parent: Option<f64>,
}

impl AskOfJs {
    /// As the SDK says it; `following` is the request of the handler that calls.
    pub(crate) fn into_options(
        self,
        following: Option<&CallOptions>,
    ) -> Result<CallOptions, Error> {
        let mut ask = following.cloned().unwrap_or_default();
        ask = self.method.into_iter().fold(ask, CallOptions::method);
        ask = self.path.into_iter().fold(ask, CallOptions::path);
        for pair in self.headers.chunks_exact(2) {
            ask = ask.header(&pair[0], &pair[1])?;
        }
        let deadline = self
            .deadline
            .and_then(|ms| Duration::try_from_secs_f64(ms / 1000.0).ok());
        ask = deadline.into_iter().fold(ask, CallOptions::deadline);
        ask = if self.idempotent == Some(true) {
            ask.idempotent()
        } else {
            ask
        };
        Ok(if self.near_only == Some(true) {
            ask.shm_only()
        } else {
            ask
        })
    }
}

/// An answer: one that came, or that of a handler.
#[napi(object)]
pub struct ResponseOfJs {
    /// HTTP status.
    pub status: u16,
    /// Names and values in turn.
    pub headers: Vec<String>,
    /// The payload.
    pub body: Buffer,
    /// The way that a call took.
    pub path: Option<String>,
    /// What stood against a nearer one.
    pub not_nearer: Option<String>,
    /// Who answered.
    pub instance: Option<f64>,
    /// Bytes of the whole body, as its sender said.
    pub length: Option<f64>,
}

impl std::fmt::Debug for ResponseOfJs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseOfJs")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

impl ResponseOfJs {
    pub(crate) fn from_response(response: &Response) -> Self {
        Self {
            status: response.status(),
            headers: flatten_headers(response.head()),
            body: response.body().to_vec().into(),
            path: response.path().map(|path| path.name().to_owned()),
            not_nearer: response.not_nearer().map(str::to_owned),
            instance: response.instance().map(|instance| instance as f64),
            length: response.length().map(|length| length as f64),
        }
    }

    /// As the SDK says it; what no field can be is an answer of its own.
    pub(crate) fn into_response(self) -> Response {
        let mut head = HeaderFields::default();
        for pair in self.headers.chunks_exact(2) {
            if let Err(error) = head.push_field(&pair[0], pair[1].as_bytes()) {
                return Response::new(error.to_string()).with_status(500);
            }
        }
        Response::new(self.body.to_vec())
            .with_status(self.status)
            .with_head(head)
    }
}

/// A call that came in.
#[napi(object)]
pub struct RequestOfJs {
    /// POST when the caller says nothing.
    pub method: String,
    /// Path and query after the function's name.
    pub path: String,
    /// Names and values in turn.
    pub headers: Vec<String>,
    /// The payload.
    pub body: Buffer,
    /// The function that calls.
    pub caller: Option<String>,
    /// The way that it came.
    pub came_over: String,
    /// Nobody waits for an answer.
    pub is_event: bool,
    /// Of an event that was published.
    pub topic: Option<String>,
    /// Milliseconds that the caller still waits.
    pub time_left: Option<f64>,
    /// The trace that it belongs to.
    pub traceparent: Option<String>,
}

impl RequestOfJs {
    pub(crate) fn from_request(request: &Request) -> Self {
        let handed_on = CallOptions::from_request(request).propagated_fields();
        Self {
            method: request.method().to_owned(),
            path: request.path().to_owned(),
            headers: flatten_headers(request.head()),
            body: request.body().to_vec().into(),
            caller: request.caller().map(str::to_owned),
            came_over: request.arrival_path().name().to_owned(),
            is_event: request.is_event(),
            topic: request.topic().map(str::to_owned),
            time_left: request.time_left().map(|left| left.as_secs_f64() * 1000.0),
            traceparent: handed_on
                .into_iter()
                .find_map(|(name, value)| (name == "traceparent").then_some(value)),
        }
    }
}

fn flatten_headers(head: &HeaderFields) -> Vec<String> {
    head.iter()
        .flat_map(|(name, value)| [name.to_owned(), String::from_utf8_lossy(value).into_owned()])
        .collect()
}

/// Why there is no answer.
#[napi(object)]
#[derive(Debug)]
pub struct ErrorOfJs {
    /// The kind's name.
    pub kind: String,
    /// For people.
    pub message: String,
    /// Which function.
    pub function: String,
    /// Which path.
    pub path: Option<String>,
    /// Whether the call provably did not run.
    pub retry_is_safe: bool,
    /// Of the platform's answer.
    pub status: Option<u16>,
    /// Of the platform's answer.
    pub reason: Option<String>,
    /// Of the platform's answer, for people.
    pub text: Option<String>,
}

impl ErrorOfJs {
    fn from_error(error: &Error) -> Self {
        let (status, reason, text) = match error.kind() {
            ErrorKind::Platform {
                status,
                reason,
                text,
            } => (Some(*status), reason.clone(), Some(text.clone())),
            _ => (None, None, None),
        };
        Self {
            kind: error.kind().code_name().to_owned(),
            message: error.to_string(),
            function: error.function().to_owned(),
            path: error.path().map(|path| path.name().to_owned()),
            retry_is_safe: error.retry_is_safe(),
            status,
            reason,
            text,
        }
    }
}

/// What JavaScript is told.
#[napi(object)]
pub struct Message {
    /// Of the call that it is about; below 0: about serving.
    pub id: f64,
    /// A call came.
    pub request: Option<RequestOfJs>,
    /// An answer came.
    pub response: Option<ResponseOfJs>,
    /// Something failed.
    pub error: Option<ErrorOfJs>,
    /// The caller of this number no longer waits.
    pub given_up: Option<bool>,
    /// About the body of a call that came, or of one that was made.
    pub taken: Option<bool>,
    /// A part of it.
    pub part: Option<Buffer>,
    /// It is complete.
    pub end: Option<bool>,
    /// Whether another piece of it is wanted.
    pub room: Option<bool>,
    /// To how many functions an event went, and to how many it did not.
    pub published: Option<Vec<u32>>,
    /// The number that the gateway gave a call for later; empty: none.
    pub accepted: Option<String>,
}

impl Message {
    pub(crate) fn new_for(id: f64) -> Self {
        Self {
            id,
            request: None,
            response: None,
            error: None,
            given_up: None,
            taken: None,
            part: None,
            end: None,
            room: None,
            published: None,
            accepted: None,
        }
    }

    /// About a body.
    pub(crate) fn for_body((taken, id): (bool, u64)) -> Self {
        Self {
            taken: Some(taken),
            ..Self::new_for(id as f64)
        }
    }

    /// What came of it.
    pub(crate) fn for_body_part(body: (bool, u64), part: Option<Result<Bytes, Error>>) -> Self {
        match part {
            None => Self {
                end: Some(true),
                ..Self::for_body(body)
            },
            Some(Ok(part)) => Self {
                part: Some(part.to_vec().into()),
                ..Self::for_body(body)
            },
            Some(Err(error)) => Self {
                error: Some(ErrorOfJs::from_error(&error)),
                ..Self::for_body(body)
            },
        }
    }

    pub(crate) fn for_outcome(id: f64, outcome: &Result<FinishedCall, Error>) -> Self {
        match outcome {
            Ok(FinishedCall::Published(PublishReport { sent, missed })) => Self {
                published: Some(vec![*sent as u32, *missed as u32]),
                ..Self::new_for(id)
            },
            Ok(FinishedCall::Accepted(call)) => Self {
                accepted: Some(call.clone().unwrap_or_default()),
                ..Self::new_for(id)
            },
            Ok(FinishedCall::Answer(response)) => Self {
                response: Some(ResponseOfJs::from_response(response)),
                ..Self::new_for(id)
            },
            Err(error) => Self {
                error: Some(ErrorOfJs::from_error(error)),
                ..Self::new_for(id)
            },
        }
    }
}

/// What became of a call.
#[derive(Debug)]
pub(crate) enum FinishedCall {
    /// It was answered; its body may be still to come.
    Answer(Response),
    /// It was an event for a topic.
    Published(PublishReport),
    /// It waits in the gateway's queue, by that number.
    Accepted(Option<String>),
}
