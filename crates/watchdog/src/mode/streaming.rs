//! Mode `streaming`: one process per call; the request streams into its stdin while its stdout
//! streams out as the response.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Body as _;
use nearpath_types::PlatformError;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;

use super::fork::{AbortedStdin, CallProcess, ProcessSpawner, StdinFeeder};
use super::{ModeCall, ModeResponse};
use crate::cgi;
use crate::config::WatchdogConfig;
use crate::request_body::{RequestBody, body_error};
use crate::response_body::WatchdogBody;

/// Mode `streaming`, with the processes of its calls.
#[derive(Debug)]
pub(crate) struct StreamingMode {
    spawner: ProcessSpawner,
    content_type: HeaderValue,
    read_timeout: Option<Duration>,
}

impl StreamingMode {
    pub(crate) fn new(config: &WatchdogConfig, spawner: ProcessSpawner) -> Self {
        Self {
            spawner,
            content_type: config.content_type.clone(),
            read_timeout: config.read_timeout,
        }
    }

    /// Returns whether a process of a call listened on a port without connections.
    pub(super) fn may_be_server(&self) -> bool {
        self.spawner.may_be_server()
    }

    /// Sends the head with the first byte of the response, so that a process that fails at once
    /// gets a 500.
    pub(crate) async fn handle_call(&self, call: ModeCall) -> Result<ModeResponse, PlatformError> {
        let ModeCall {
            request, upload, ..
        } = call;
        let (parts, body) = request.into_parts();
        let variables = cgi::cgi_variables(&parts, body.size_hint().exact());
        let body = RequestBody::monitored(body, self.read_timeout, &upload);
        let mut process = self.spawner.start_process(variables, |stdin| {
            StdinFeeder::spawn(feed_stdin(body, stdin))
        })?;
        let first = process.next_chunk().await?;
        // The caller's silence counts no more, because the response has begun.
        upload.mark_answered();
        let body = if first.is_empty() {
            // Without output the exit code decides between an empty response and a 500.
            process.wait_exit().await?;
            WatchdogBody::empty()
        } else {
            response_stream(first, process)
        };
        let mut response = Response::new(body);
        response
            .headers_mut()
            .insert(CONTENT_TYPE, self.content_type.clone());
        Ok(ModeResponse::Plain(response))
    }
}

/// Copies the request into the process. A process that does not read all of it is no error.
async fn feed_stdin(mut body: RequestBody, mut stdin: pipe::Sender) -> Result<(), AbortedStdin> {
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(fault) => {
                return Err(AbortedStdin {
                    fault: body_error(&*fault),
                    _stdin: stdin,
                });
            }
        };
        if let Ok(mut bytes) = frame.into_data()
            && stdin.write_all_buf(&mut bytes).await.is_err()
        {
            // EPIPE: the process has closed its stdin and needs no more.
            break;
        }
    }
    Ok(())
}

enum StreamStep {
    First(Bytes, CallProcess),
    More(CallProcess),
    Over,
}

/// Returns the body of the response. A process that fails after its first byte breaks it, so that
/// half a response never looks whole.
fn response_stream(first: Bytes, process: CallProcess) -> WatchdogBody {
    let stream = stream::unfold(StreamStep::First(first, process), async |step| match step {
        StreamStep::First(bytes, process) => {
            Some((Ok(Frame::data(bytes)), StreamStep::More(process)))
        }
        StreamStep::More(mut process) => match process.next_chunk().await {
            Ok(bytes) if bytes.is_empty() => process
                .wait_exit()
                .await
                .err()
                .map(|fault| (Err(fault), StreamStep::Over)),
            Ok(bytes) => Some((Ok(Frame::data(bytes)), StreamStep::More(process))),
            Err(fault) => Some((Err(fault), StreamStep::Over)),
        },
        StreamStep::Over => None,
    });
    WatchdogBody::from_stream(StreamBody::new(stream))
}
