//! Mode `serializing`: one process a call; it starts when the whole request is there, and its whole output is the answer.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use nearpath_types::{PlatformError, Reason};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;

use super::fork::{Feeder, Forked, Forks, HalfFed};
use super::{Answer, Call};
use crate::body::Body;
use crate::cgi;
use crate::config::Config;
use crate::inbound::collect;
use crate::refusal::error;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Serializing {
    forks: Forks,
    content_type: HeaderValue,
    read_timeout: Option<Duration>,
    max_body: usize,
}

impl Serializing {
    pub(crate) fn new(config: &Config, forks: Forks) -> Self {
        let (content_type, read_timeout) = (config.content_type.clone(), config.read_timeout);
        Self { forks, content_type, read_timeout, max_body: config.max_body }
    }

    pub(crate) async fn answer(&self, call: Call) -> Result<Answer, PlatformError> {
        let (parts, body) = call.request.into_parts();
        let body = collect(body, self.max_body, self.read_timeout, &call.upload).await?;
        let variables = cgi::variables(&parts, Some(body.len() as u64));
        let process = self.forks.start(variables, |stdin| Feeder::run(feed(body, stdin)))?;
        let mut response = Response::new(Body::from(self.all(process).await?));
        response.headers_mut().insert(CONTENT_TYPE, self.content_type.clone());
        Ok(Answer::Plain(response))
    }

    async fn all(&self, mut process: Forked) -> Result<Bytes, PlatformError> {
        let mut all = BytesMut::new();
        loop {
            let bytes = process.chunk().await?;
            if bytes.is_empty() {
                process.ended().await?;
                return Ok(all.freeze());
            }
            if all.len() + bytes.len() > self.max_body {
                let text = format!("the answer is larger than {} bytes", self.max_body);
                return Err(error(Reason::FunctionFailed, text).governed_by("max_body"));
            }
            all.extend_from_slice(&bytes);
        }
    }
}

/// Writes the request into the process. A process that does not want (all of) it is no fault.
async fn feed(body: Bytes, mut stdin: pipe::Sender) -> Result<(), HalfFed> {
    let _ = stdin.write_all(&body).await;
    Ok(())
}
