//! Mode `streaming`: one process a call; the request streams into its stdin while its stdout streams out as the answer.

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

use super::fork::{Feeder, Forked, Forks, HalfFed};
use super::{Answer, Call};
use crate::body::Body;
use crate::cgi;
use crate::config::Config;
use crate::inbound::{Inbound, broken};

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Streaming {
    forks: Forks,
    content_type: HeaderValue,
    read_timeout: Option<Duration>,
}

impl Streaming {
    pub(crate) fn new(config: &Config, forks: Forks) -> Self {
        Self { forks, content_type: config.content_type.clone(), read_timeout: config.read_timeout }
    }

    /// The head is sent with the first byte of the answer, so that a process which fails at once gets its 500.
    pub(crate) async fn answer(&self, call: Call) -> Result<Answer, PlatformError> {
        let Call { request, upload, .. } = call;
        let (parts, body) = request.into_parts();
        let variables = cgi::variables(&parts, body.size_hint().exact());
        let body = Inbound::arriving(body, self.read_timeout, &upload);
        let mut process = self.forks.start(variables, |stdin| Feeder::run(feed(body, stdin)))?;
        let first = process.chunk().await?;
        upload.answered();
        let body = if first.is_empty() {
            process.ended().await?;
            Body::empty()
        } else {
            rest(first, process)
        };
        let mut response = Response::new(body);
        response.headers_mut().insert(CONTENT_TYPE, self.content_type.clone());
        Ok(Answer::Plain(response))
    }
}

/// Copies the request into the process. A process that does not want (all of) it is no fault.
async fn feed(mut body: Inbound, mut stdin: pipe::Sender) -> Result<(), HalfFed> {
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(fault) => return Err(HalfFed { fault: broken(&*fault), _stdin: stdin }),
        };
        if let Ok(mut bytes) = frame.into_data()
            && stdin.write_all_buf(&mut bytes).await.is_err()
        {
            break;
        }
    }
    Ok(())
}

enum Step {
    First(Bytes, Forked),
    More(Forked),
    Over,
}

/// The answer's body. A process that fails after its first byte breaks it, so that no caller takes half for the whole.
fn rest(first: Bytes, process: Forked) -> Body {
    let stream = stream::unfold(Step::First(first, process), async |step| match step {
        Step::First(bytes, process) => Some((Ok(Frame::data(bytes)), Step::More(process))),
        Step::More(mut process) => match process.chunk().await {
            Ok(bytes) if bytes.is_empty() => process.ended().await.err().map(|fault| (Err(fault), Step::Over)),
            Ok(bytes) => Some((Ok(Frame::data(bytes)), Step::More(process))),
            Err(fault) => Some((Err(fault), Step::Over)),
        },
        Step::Over => None,
    });
    Body::stream(StreamBody::new(stream))
}
