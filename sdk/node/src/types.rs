//! Values that are exchanged with JavaScript.

use std::time::Duration;

use bytes::Bytes;
use napi::bindgen_prelude::Buffer;
use napi_derive::napi;
use nearpath::{CallOptions, Error, ErrorKind, HeaderFields, PublishReport, Request, Response};

/// Options of a call.
#[napi(object)]
#[derive(Debug)]
pub struct JsCallOptions {
    /// HTTP method; POST by default.
    pub method: Option<String>,
    /// Path; `/` by default.
    pub path: Option<String>,
    /// Names and values, alternating.
    pub headers: Vec<String>,
    /// Deadline in milliseconds from now.
    pub deadline: Option<f64>,
    /// The call may be repeated safely.
    pub idempotent: Option<bool>,
    /// Only shared memory may be used.
    pub shm_only: Option<bool>,
    /// Number of the call whose handler makes this one.
    pub parent: Option<f64>,
}

impl JsCallOptions {
    /// Converts to the SDK's options; `inherited` holds those of the handler's call.
    pub(crate) fn into_options(
        self,
        inherited: Option<&CallOptions>,
    ) -> Result<CallOptions, Error> {
        let mut options = inherited.cloned().unwrap_or_default();
        options = self.method.into_iter().fold(options, CallOptions::method);
        options = self.path.into_iter().fold(options, CallOptions::path);
        for pair in self.headers.chunks_exact(2) {
            options = options.header(&pair[0], &pair[1])?;
        }
        // Not a finite, positive number: no deadline.
        let deadline = self
            .deadline
            .and_then(|ms| Duration::try_from_secs_f64(ms / 1000.0).ok());
        options = deadline.into_iter().fold(options, CallOptions::deadline);
        options = if self.idempotent == Some(true) {
            options.idempotent()
        } else {
            options
        };
        Ok(if self.shm_only == Some(true) {
            options.shm_only()
        } else {
            options
        })
    }
}

/// A response: received, or returned by a handler.
#[napi(object)]
pub struct JsResponse {
    /// HTTP status.
    pub status: u16,
    /// Names and values, alternating.
    pub headers: Vec<String>,
    /// Payload of the message.
    pub body: Buffer,
    /// Path of the call.
    pub path: Option<String>,
    /// Obstacle to the next nearer path.
    pub obstacle: Option<String>,
    /// Instance that responded.
    pub instance: Option<f64>,
    /// Announced length of the whole body in bytes.
    pub length: Option<f64>,
}

impl std::fmt::Debug for JsResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JsResponse")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

impl JsResponse {
    pub(crate) fn from_response(response: &Response) -> Self {
        Self {
            status: response.status(),
            headers: flatten_headers(response.head()),
            body: response.body().to_vec().into(),
            path: response.path().map(|path| path.name().to_owned()),
            obstacle: response.obstacle().map(str::to_owned),
            instance: response.instance().map(|instance| instance as f64),
            length: response.length().map(|length| length as f64),
        }
    }

    /// Converts to the SDK's response; an invalid field becomes a response with status 500.
    pub(crate) fn into_response(self) -> Response {
        let mut head = HeaderFields::default();
        for pair in self.headers.chunks_exact(2) {
            // The error must reach the caller: a dropped header could change the response's
            // meaning.
            if let Err(error) = head.push_field(&pair[0], pair[1].as_bytes()) {
                return Response::new(error.to_string()).with_status(500);
            }
        }
        Response::new(self.body.to_vec())
            .with_status(self.status)
            .with_head(head)
    }
}

/// A received call.
#[napi(object)]
pub struct JsRequest {
    /// HTTP method.
    pub method: String,
    /// Path and query after the function's name.
    pub path: String,
    /// Names and values, alternating.
    pub headers: Vec<String>,
    /// Payload of the message.
    pub body: Buffer,
    /// Calling function.
    pub caller: Option<String>,
    /// Path of the call.
    pub arrival_path: String,
    /// True for an event, which has no response.
    pub is_event: bool,
    /// Topic of a published event.
    pub topic: Option<String>,
    /// Milliseconds that the caller still waits.
    pub time_left: Option<f64>,
    /// Trace context of the call.
    pub traceparent: Option<String>,
}

impl JsRequest {
    pub(crate) fn from_request(request: &Request) -> Self {
        let propagated_fields = CallOptions::from_request(request).propagated_fields();
        Self {
            method: request.method().to_owned(),
            path: request.path().to_owned(),
            headers: flatten_headers(request.head()),
            body: request.body().to_vec().into(),
            caller: request.caller().map(str::to_owned),
            arrival_path: request.arrival_path().name().to_owned(),
            is_event: request.is_event(),
            topic: request.topic().map(str::to_owned),
            time_left: request.time_left().map(|left| left.as_secs_f64() * 1000.0),
            traceparent: propagated_fields
                .into_iter()
                .find_map(|(name, value)| (name == "traceparent").then_some(value)),
        }
    }
}

fn flatten_headers(head: &HeaderFields) -> Vec<String> {
    // A flat list crosses the boundary faster than an object for each field.
    head.iter()
        .flat_map(|(name, value)| [name.to_owned(), String::from_utf8_lossy(value).into_owned()])
        .collect()
}

/// Reason why a call has no response.
#[napi(object)]
#[derive(Debug)]
pub struct JsCallError {
    /// Name of the error's kind.
    pub kind: String,
    /// Message for users.
    pub message: String,
    /// Function that was called.
    pub function: String,
    /// Path of the call.
    pub path: Option<String>,
    /// True if the call provably did not run.
    pub retry_is_safe: bool,
    /// Status of the platform's response.
    pub status: Option<u16>,
    /// Reason of the platform's response.
    pub reason: Option<String>,
    /// Text of the platform's response.
    pub text: Option<String>,
}

impl JsCallError {
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

/// Message to JavaScript.
#[napi(object)]
pub struct Message {
    /// Number of the call; negative: about serving.
    pub id: f64,
    /// A received call.
    pub request: Option<JsRequest>,
    /// A response.
    pub response: Option<JsResponse>,
    /// A failure.
    pub error: Option<JsCallError>,
    /// True when the caller no longer waits.
    pub is_cancelled: Option<bool>,
    /// True for the body of a received call, false for that of an outgoing one.
    pub is_incoming: Option<bool>,
    /// A part of the body.
    pub part: Option<Buffer>,
    /// Ends a body.
    pub end: Option<bool>,
    /// True if the receiver wants another piece of the body.
    pub wants_more: Option<bool>,
    /// Number of functions that received an event, and of those that missed it.
    pub published: Option<Vec<u32>>,
    /// Id of a queued call from the gateway; empty: none.
    pub accepted: Option<String>,
}

impl Message {
    pub(crate) fn new_for(id: f64) -> Self {
        Self {
            id,
            request: None,
            response: None,
            error: None,
            is_cancelled: None,
            is_incoming: None,
            part: None,
            end: None,
            wants_more: None,
            published: None,
            accepted: None,
        }
    }

    /// Creates a message about a body.
    pub(crate) fn for_body((is_incoming, id): (bool, u64)) -> Self {
        Self {
            is_incoming: Some(is_incoming),
            ..Self::new_for(id as f64)
        }
    }

    /// Creates a message with the next part of a body, its end or its error.
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
                error: Some(JsCallError::from_error(&error)),
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
            Ok(FinishedCall::Response(response)) => Self {
                response: Some(JsResponse::from_response(response)),
                ..Self::new_for(id)
            },
            Err(error) => Self {
                error: Some(JsCallError::from_error(error)),
                ..Self::new_for(id)
            },
        }
    }
}

/// Successful end of a call.
#[derive(Debug)]
pub(crate) enum FinishedCall {
    /// A response, whose body may still be arriving.
    Response(Response),
    /// A published event.
    Published(PublishReport),
    /// A call in the gateway's queue, with its id.
    Accepted(Option<String>),
}
