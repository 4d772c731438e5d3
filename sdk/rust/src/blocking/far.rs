//! Calls over HTTP from a thread that waits.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::ask::Ask;
use crate::context::Context;
use crate::error::{Error, Kind};
use crate::far::{Client, Way};
use crate::message::{Path, Response};

/// Connections to the gateway and the thread that tends them; it begins with the first call.
#[derive(Debug)]
pub(super) struct Far {
    client: Arc<Client>,
    runtime: OnceLock<Runtime>,
}

impl Far {
    pub(super) fn new(gateway: String) -> Self {
        Self { client: Arc::new(Client::new(gateway)), runtime: OnceLock::new() }
    }

    pub(super) fn call(&self, way: Way, name: &str, body: &Bytes, ask: &Ask, with: Context) -> Result<Response, Error> {
        let runtime = self.runtime(name)?;
        runtime.block_on(self.client.call(way, name, body, ask, with))
    }

    /// Makes a call without waiting.
    pub(super) fn begin(&self, name: &str, body: Bytes, ask: &Ask, with: Context) -> Result<Distant, Error> {
        let (client, name, ask) = (Arc::clone(&self.client), name.to_owned(), ask.clone());
        let runtime = self.runtime(&name)?;
        Ok(Distant(runtime.spawn(async move { client.call(Way::Sync, &name, &body, &ask, with).await })))
    }

    pub(super) fn wait(&self, name: &str, mut distant: Distant) -> Result<Response, Error> {
        let lost = |why: String| Error::new(name, Some(Path::Http), Kind::Died(why));
        self.runtime(name)?.block_on(&mut distant.0).map_err(|error| lost(error.to_string()))?
    }

    fn runtime(&self, name: &str) -> Result<&Runtime, Error> {
        if let Some(runtime) = self.runtime.get() {
            return Ok(runtime);
        }
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("nearpath-http").enable_all().build();
        let runtime =
            runtime.map_err(|error| Error::new(name, None, Kind::Listen(format!("no event loop: {error}"))))?;
        Ok(self.runtime.get_or_init(|| runtime))
    }
}

/// A call over HTTP that is under way. Dropping it gives it up.
#[derive(Debug)]
pub(super) struct Distant(JoinHandle<Result<Response, Error>>);

impl Drop for Distant {
    fn drop(&mut self) {
        self.0.abort();
    }
}
