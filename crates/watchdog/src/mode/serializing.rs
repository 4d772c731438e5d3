//! Mode `serializing`: one process per call; it starts when the whole request is there, and its
//! whole output is the response.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use nearpath_types::{PlatformError, Reason};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;

use super::fork::{AbortedStdin, CallProcess, ProcessSpawner, StdinFeeder};
use super::{ModeCall, ModeResponse};
use crate::cgi;
use crate::config::WatchdogConfig;
use crate::errors::watchdog_error;
use crate::request_body::collect_body;
use crate::response_body::WatchdogBody;

/// Mode `serializing`, with the processes of its calls.
#[derive(Debug)]
pub(crate) struct SerializingMode {
    spawner: ProcessSpawner,
    content_type: HeaderValue,
    read_timeout: Option<Duration>,
    max_body: usize,
}

impl SerializingMode {
    pub(crate) fn new(config: &WatchdogConfig, spawner: ProcessSpawner) -> Self {
        let (content_type, read_timeout) = (config.content_type.clone(), config.read_timeout);
        Self {
            spawner,
            content_type,
            read_timeout,
            max_body: config.max_body,
        }
    }

    /// Returns whether a process of a call listened on a port without connections.
    pub(super) fn may_be_server(&self) -> bool {
        self.spawner.may_be_server()
    }

    pub(crate) async fn handle_call(&self, call: ModeCall) -> Result<ModeResponse, PlatformError> {
        let (parts, body) = call.request.into_parts();
        // Before the process starts: an incomplete request must not run.
        let body = collect_body(body, self.max_body, self.read_timeout, &call.upload).await?;
        // The counted length, because a chunked request declares none.
        let variables = cgi::cgi_variables(&parts, Some(body.len() as u64));
        let process = self.spawner.start_process(variables, |stdin| {
            StdinFeeder::spawn(feed_stdin(body, stdin))
        })?;
        let mut response = Response::new(WatchdogBody::from(self.collect_output(process).await?));
        response
            .headers_mut()
            .insert(CONTENT_TYPE, self.content_type.clone());
        Ok(ModeResponse::Plain(response))
    }

    async fn collect_output(&self, mut process: CallProcess) -> Result<Bytes, PlatformError> {
        let mut all = BytesMut::new();
        loop {
            let bytes = process.next_chunk().await?;
            if bytes.is_empty() {
                // The exit code first: the output of a failed process must not look like a success.
                process.wait_exit().await?;
                return Ok(all.freeze());
            }
            if all.len() + bytes.len() > self.max_body {
                let text = format!("the answer is larger than {} bytes", self.max_body);
                return Err(watchdog_error(Reason::FunctionFailed, text).governed_by("max_body"));
            }
            all.extend_from_slice(&bytes);
        }
    }
}

/// Writes the request to the process. A process that does not read all of it is no error.
async fn feed_stdin(body: Bytes, mut stdin: pipe::Sender) -> Result<(), AbortedStdin> {
    // EPIPE: the process has closed its stdin.
    let _ = stdin.write_all(&body).await;
    Ok(())
}
