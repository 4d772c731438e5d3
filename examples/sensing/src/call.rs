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

type Trouble = Box<dyn Error + Send + Sync>;

/// Status and text for the caller.
pub(crate) type Fault = (u16, String);

/// What the caller gets.
pub(crate) fn response(outcome: Result<Bytes, Fault>) -> Response {
    match outcome {
        Ok(body) => Response::new(body),
        Err((status, text)) => Response::new(text).with_status(status),
    }
}

/// Calls to other functions.
#[derive(Default)]
pub(crate) struct Calls {
    /// `HOST:PORT` of functions that are called without a platform.
    direct: BTreeMap<String, String>,
    /// Connections at rest, by where they lead.
    idle: RefCell<BTreeMap<String, Vec<SendRequest<Full<Bytes>>>>>,
}

impl Calls {
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
    pub(crate) async fn call(&self, name: &str, body: Bytes) -> Result<Bytes, Fault> {
        let (status, body) = match self.direct.get(name) {
            Some(to) => self
                .straight(to, body)
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

    async fn straight(&self, to: &str, body: Bytes) -> Result<(u16, Bytes), Trouble> {
        let mut sender = self.connection(to).await?;
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

    async fn connection(&self, to: &str) -> Result<SendRequest<Full<Bytes>>, Trouble> {
        while let Some(mut kept) = self.kept(to) {
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

    fn kept(&self, to: &str) -> Option<SendRequest<Full<Bytes>>> {
        self.idle.borrow_mut().get_mut(to).and_then(Vec::pop)
    }
}
