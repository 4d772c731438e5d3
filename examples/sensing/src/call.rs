//! The next function: through memory, else over HTTP.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use nearpath_domain::post::polled::Post;
use nearpath_domain::{CallError, To};
use nearpath_types::FunctionId;
use tokio::net::TcpStream;

use crate::function::Fault;

type Trouble = Box<dyn Error + Send + Sync>;

/// Calls to other functions.
#[derive(Default)]
pub(crate) struct Calls {
    post: RefCell<Option<Post>>,
    /// `HOST:PORT` of functions that are called without a platform.
    direct: BTreeMap<String, String>,
    gateway: String,
    /// Connections at rest, by where they lead.
    idle: RefCell<BTreeMap<String, Vec<SendRequest<Full<Bytes>>>>>,
}

impl Calls {
    /// As the environment says.
    pub(crate) fn from_environment() -> Self {
        let variable = |name| std::env::var(name).unwrap_or_default();
        let url = variable("gateway_url");
        let gateway = url.trim_start_matches("http://").trim_end_matches('/');
        let direct = variable("SENSING_DIRECT");
        let direct = direct.split(',').filter_map(|pair| pair.split_once('='));
        Self {
            direct: direct.map(|(name, addr)| (name.to_owned(), addr.to_owned())).collect(),
            gateway: if gateway.is_empty() { "gateway:8080" } else { gateway }.to_owned(),
            ..Self::default()
        }
    }

    /// From now on there is memory.
    pub(crate) fn joined(&self, post: Post) {
        *self.post.borrow_mut() = Some(post);
    }

    /// Calls and waits for the answer. What was not sent through memory goes over HTTP; what was sent is never sent again.
    pub(crate) async fn call(&self, name: &str, body: Bytes) -> Result<Bytes, Fault> {
        let fault = |error: &dyn std::fmt::Display| (502, format!("{name}: {error}"));
        if let Some(outcome) = self.near(name, &body).await {
            return outcome;
        }
        let (to, path) = match self.direct.get(name) {
            Some(to) => (to, "/".to_owned()),
            None => (&self.gateway, format!("/function/{name}")),
        };
        let (status, body) = self.far(to, &path, body).await.map_err(|error| fault(&error))?;
        if status == 200 { Ok(body) } else { Err((status, String::from_utf8_lossy(&body).into_owned())) }
    }

    /// `None`: not sent.
    async fn near(&self, name: &str, body: &Bytes) -> Option<Result<Bytes, Fault>> {
        let post = self.post.borrow().clone()?;
        let function: FunctionId = name.parse().ok()?;
        let fields: [(&str, &[u8]); 2] = [(":method", b"POST"), (":path", b"/")];
        let request = nearpath_domain::Request { fields: &fields, body: body.clone(), ..Default::default() };
        match post.call(To::Function(&function), &request).ok()?.await {
            Ok(reply) if reply.status == 200 => Some(Ok(Bytes::copy_from_slice(&reply.body))),
            Ok(reply) => Some(Err((reply.status, String::from_utf8_lossy(&reply.body).into_owned()))),
            Err(CallError::Unsent(_)) => None,
            Err(error) => Some(Err((502, format!("{name}: {error}")))),
        }
    }

    async fn far(&self, to: &str, path: &str, body: Bytes) -> Result<(u16, Bytes), Trouble> {
        let mut sender = self.connection(to).await?;
        let request = Request::post(path).header("host", to).header("content-type", "application/json");
        let answer = sender.send_request(request.body(Full::new(body))?).await?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await?.to_bytes();
        self.idle.borrow_mut().entry(to.to_owned()).or_default().push(sender);
        Ok((status, body))
    }

    fn kept(&self, to: &str) -> Option<SendRequest<Full<Bytes>>> {
        self.idle.borrow_mut().get_mut(to).and_then(Vec::pop)
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
}
