//! The next function: by name, or straight to an address for comparisons.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use nearpath::Response;
use tokio::net::TcpStream;

type BoxedError = Box<dyn Error + Send + Sync>;

/// Status and text for the caller.
pub(crate) type CallerError = (u16, String);

/// Makes the response of an outcome.
pub(crate) fn to_response(outcome: Result<Bytes, CallerError>) -> Response {
    match outcome {
        Ok(body) => Response::new(body),
        Err((status, text)) => Response::new(text).with_status(status),
    }
}

/// Calls to other functions.
#[derive(Default)]
pub(crate) struct FunctionClient {
    /// `HOST:PORT` of functions that are called without a platform.
    direct: BTreeMap<String, String>,
    /// Connections at rest, by where they lead.
    idle: RefCell<BTreeMap<String, Vec<SendRequest<Full<Bytes>>>>>,
}

impl FunctionClient {
    /// As the environment says.
    pub(crate) fn from_environment() -> Self {
        let direct = std::env::var("SENSING_DIRECT").unwrap_or_default();
        let direct = direct.split(',').filter_map(|pair| pair.split_once('='));
        Self {
            direct: direct
                .map(|(name, addr)| (name.to_owned(), addr.to_owned()))
                .collect(),
            ..Self::default()
        }
    }

    /// Calls and waits for the answer.
    pub(crate) async fn call_function(
        &self,
        name: &str,
        body: Bytes,
    ) -> Result<Bytes, CallerError> {
        let (status, body) = match self.direct.get(name) {
            Some(to) => self
                .call_direct(to, body)
                .await
                .map_err(|error| (502, format!("{name}: {error}")))?,
            None => {
                let answer = nearpath::call(name, body)
                    .await
                    .map_err(|error| (502, error.to_string()))?;
                (answer.status(), answer.into_body().into())
            }
        };
        if status == 200 {
            Ok(body)
        } else {
            Err((status, String::from_utf8_lossy(&body).into_owned()))
        }
    }

    async fn call_direct(&self, to: &str, body: Bytes) -> Result<(u16, Bytes), BoxedError> {
        let mut sender = self.take_connection(to).await?;
        let request = Request::post("/")
            .header("host", to)
            .header("content-type", "application/json");
        let answer = sender.send_request(request.body(Full::new(body))?).await?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await?.to_bytes();
        self.idle
            .borrow_mut()
            .entry(to.to_owned())
            .or_default()
            .push(sender);
        Ok((status, body))
    }

    async fn take_connection(&self, to: &str) -> Result<SendRequest<Full<Bytes>>, BoxedError> {
        while let Some(mut kept) = self.take_idle(to) {
            if !kept.is_closed() && kept.ready().await.is_ok() {
                return Ok(kept);
            }
        }
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::task::spawn_local(async move { drop(connection.await) }); // its end shows in the sender
        Ok(sender)
    }

    fn take_idle(&self, to: &str) -> Option<SendRequest<Full<Bytes>>> {
        self.idle.borrow_mut().get_mut(to).and_then(Vec::pop)
    }
}
