//! Calls through the shared memory of the chain.

use std::time::Duration;

use bytes::Bytes;
use clap::ValueEnum;
use nearpath_domain::post::polled::Post;
use nearpath_domain::{CallError, Reply, Request, To, clock};
use nearpath_types::FunctionId;

use super::{Http, Parcel};
use crate::goods::Encoding;
use crate::services::Service;
use crate::words::{Passed, Problem};

const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Memory {
    post: Post,
    /// By service.
    names: Vec<FunctionId>,
    /// For calls that memory cannot take now; nothing of them has been sent.
    other: Http,
}

impl Memory {
    pub(super) fn new(post: Post, other: Http) -> Self {
        let name = |service: &Service| service.name().parse().expect("a service's name is a function's");
        Self { post, names: Service::value_variants().iter().map(name).collect(), other }
    }

    pub(super) async fn ask(
        &self,
        to: Service,
        path: &'static str,
        encoding: Encoding,
        body: Bytes,
        passed: &Passed,
    ) -> Result<Parcel, Problem> {
        let sent = self.send(to, path, &body, passed);
        match sent {
            Ok(call) => call.await.map(Parcel::from).map_err(|error| lost(to, error)),
            Err(_) => self.other.ask(to, path, encoding, body, passed).await,
        }
    }

    fn send(
        &self,
        to: Service,
        path: &'static str,
        body: &Bytes,
        passed: &Passed,
    ) -> Result<nearpath_domain::post::polled::Call, nearpath_domain::Unsent> {
        let mut fields: Vec<(&str, &[u8])> = Vec::with_capacity(2 + passed.len());
        fields.push((":method", b"POST"));
        fields.push((":path", path.as_bytes()));
        fields.extend(passed.iter().map(|(name, value)| (*name, value.as_bytes())));
        let deadline = clock::within(PATIENCE);
        let request = Request { fields: &fields, body: body.clone(), deadline, ..Request::default() };
        self.post.call(To::Function(&self.names[to as usize]), &request)
    }
}

impl From<Reply> for Parcel {
    fn from(reply: Reply) -> Self {
        Self { status: reply.status, platform: reply.platform, body: reply.body }
    }
}

fn lost(to: Service, error: CallError) -> Problem {
    Problem::new(502, format!("{}: {error}", to.name()))
}
