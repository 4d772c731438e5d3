//! Calls over HTTP from a thread that waits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;

use bytes::Bytes;
use nearpath_domain::clock::{self, MonotonicNanos};
use nearpath_domain::endpoint::BodyUnwanted;
use nearpath_shm::WakeupSignal;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::sigpipe;
use super::streaming_call::StreamEvent;
use super::thread_endpoint::INTERRUPT_CHECK_INTERVAL;
use crate::body_stream::BodySource;
use crate::call_options::CallOptions;
use crate::context::CallContext;
use crate::error::{Error, ErrorKind};
use crate::http_client::{GatewayClient, GatewayMode, UploadBody, UploadChunk};
use crate::message::{Path, Response};

/// Connections to a gateway and the thread that tends them, for all threads of the process; it begins with the first call.
#[derive(Debug)]
pub(super) struct HttpCalls {
    client: Arc<GatewayClient>,
    runtime: OnceLock<Runtime>,
}

/// Callback that interrupts a wait when it returns true.
pub(super) type InterruptCheck = Option<fn() -> bool>;

/// Wakes a thread that waits for several calls, in memory or not.
#[derive(Debug)]
pub(super) struct ThreadWakeup {
    thread: Mutex<Thread>,
    pub(super) signal: Mutex<Option<WakeupSignal>>,
}

impl Default for ThreadWakeup {
    fn default() -> Self {
        Self {
            thread: Mutex::new(std::thread::current()),
            signal: Mutex::default(),
        }
    }
}

impl ThreadWakeup {
    /// Registers the current thread as the waiting one.
    pub(super) fn set_current(&self) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = std::thread::current();
    }

    fn wake_thread(&self) {
        if let Some(knocker) = &*self.signal.lock().unwrap_or_else(PoisonError::into_inner) {
            knocker.notify_control();
        }
        self.thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .unpark();
    }
}

/// Those of this process, by process and gateway: a child that was forked has the map of its parent, but not the threads.
static CLIENTS: Mutex<BTreeMap<(u32, String), Arc<HttpCalls>>> = Mutex::new(BTreeMap::new());

impl HttpCalls {
    /// Those to a gateway: a thread that comes and goes finds the connections of others.
    pub(super) fn for_gateway(gateway: &str) -> Arc<Self> {
        let mut all = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
        let far = all.entry((std::process::id(), gateway.to_owned()));
        Arc::clone(far.or_insert_with(|| {
            let client = Arc::new(GatewayClient::new(gateway.to_owned()));
            Arc::new(Self {
                client,
                runtime: OnceLock::new(),
            })
        }))
    }

    pub(super) fn call(
        &self,
        way: GatewayMode,
        name: &str,
        body: &Bytes,
        ask: &CallOptions,
        with: CallContext,
    ) -> Result<Response, Error> {
        let runtime = self.runtime(name)?;
        runtime.block_on(self.client.call(way, name, body, ask, with))
    }

    /// Makes a call without waiting; wakes the waiting thread when it has ended.
    pub(super) fn begin_call(
        &self,
        name: &str,
        way: GatewayMode,
        body: Bytes,
        ask: &CallOptions,
        with: CallContext,
        bell: &Arc<ThreadWakeup>,
    ) -> Result<HttpPending, Error> {
        let (client, name, ask, bell) = (
            Arc::clone(&self.client),
            name.to_owned(),
            ask.clone(),
            Arc::clone(bell),
        );
        let runtime = self.runtime(&name)?;
        Ok(HttpPending(runtime.spawn(async move {
            let outcome = client.call(way, &name, &body, &ask, with).await;
            tokio::spawn(async move { bell.wake_thread() }); // runs when this task has ended, and its outcome is there
            outcome
        })))
    }

    pub(super) fn wait_response(
        &self,
        name: &str,
        mut distant: HttpPending,
        interrupt: InterruptCheck,
    ) -> Result<Response, Error> {
        let lost = |why: String| Error::new(name, Some(Path::Http), ErrorKind::Died(why));
        self.runtime(name)?.block_on(async {
            tokio::select! {
                biased;
                outcome = &mut distant.0 => outcome.map_err(|error| lost(error.to_string()))?,
                () = interrupted(interrupt) => Err(lost("it was given up here".into())),
            }
        })
    }

    /// Begins a call whose body is written piece by piece.
    pub(super) fn open_call(
        &self,
        name: &str,
        way: GatewayMode,
        ask: &CallOptions,
        with: CallContext,
    ) -> Result<HttpStream, Error> {
        let (sender, upload) = UploadBody::new();
        let (client, named, ask) = (Arc::clone(&self.client), name.to_owned(), ask.clone());
        let begins = self.runtime(name)?.spawn(async move {
            let (response, incoming) = client.open_call(&named, way, upload, &ask, with).await?;
            Ok((response, BodySource::Http(incoming)))
        });
        Ok(HttpStream {
            pieces: Some(sender),
            begins: Some(begins),
            source: None,
        })
    }

    /// Waits for what comes next.
    pub(super) fn next_event(
        &self,
        name: &str,
        distance: &mut HttpStream,
        writes: bool,
        until: MonotonicNanos,
        interrupt: InterruptCheck,
    ) -> Result<StreamEvent, Error> {
        let fault = |kind| Error::new(name, Some(Path::Http), kind);
        self.runtime(name)?.block_on(async {
            let HttpStream { pieces, begins, source } = distance;
            loop {
                tokio::select! {
                    biased;
                    begun = response_begun(begins) => {
                        *begins = None;
                        let (response, incoming) = begun.map_err(|error| fault(ErrorKind::Died(error.to_string())))??;
                        *source = Some(incoming);
                        return Ok(StreamEvent::Begun(response));
                    }
                    part = next_part(source) => {
                        return part.map_or(Ok(StreamEvent::End), |part| part.map(StreamEvent::Part).map_err(fault));
                    }
                    room = upload_room(pieces), if writes => match room {
                        true => return Ok(StreamEvent::Writable),
                        false => *pieces = None,
                    },
                    () = sleep_until_deadline(until) => return Err(fault(ErrorKind::Timeout)),
                    () = interrupted(interrupt) => return Err(fault(ErrorKind::Died("it was given up here".into()))),
                }
            }
        })
    }

    pub(super) fn write_chunk(
        &self,
        distance: &mut HttpStream,
        piece: Bytes,
    ) -> Result<(), BodyUnwanted> {
        let pieces = distance.pieces.as_ref().ok_or(BodyUnwanted)?;
        pieces.blocking_send(Ok(piece)).map_err(|_| BodyUnwanted)
    }

    fn runtime(&self, name: &str) -> Result<&Runtime, Error> {
        if let Some(runtime) = self.runtime.get() {
            return Ok(runtime);
        }
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder
            .worker_threads(1)
            .thread_name("nearpath-http")
            .on_thread_start(sigpipe::block_sigpipe)
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| {
            Error::new(
                name,
                None,
                ErrorKind::Listen(format!("no event loop: {error}")),
            )
        })?;
        Ok(self.runtime.get_or_init(|| runtime))
    }
}

type ResponseTask = JoinHandle<Result<(Response, BodySource), Error>>;

async fn response_begun(
    begins: &mut Option<ResponseTask>,
) -> Result<Result<(Response, BodySource), Error>, tokio::task::JoinError> {
    match begins {
        Some(begins) => begins.await,
        None => std::future::pending().await,
    }
}

async fn next_part(source: &mut Option<BodySource>) -> Option<Result<Bytes, ErrorKind>> {
    match source {
        Some(source) => std::future::poll_fn(|cx| source.poll_part(cx)).await,
        None => std::future::pending().await,
    }
}

/// Waits for room for a chunk; false when no more is wanted.
async fn upload_room(pieces: &Option<mpsc::Sender<UploadChunk>>) -> bool {
    match pieces {
        Some(pieces) => pieces.reserve().await.is_ok(),
        None => std::future::pending().await,
    }
}

async fn sleep_until_deadline(deadline: MonotonicNanos) {
    match deadline {
        0 => std::future::pending().await,
        deadline => tokio::time::sleep(clock::time_until(deadline)).await,
    }
}

async fn interrupted(interrupt: InterruptCheck) {
    let Some(stop) = interrupt else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(INTERRUPT_CHECK_INTERVAL).await;
        if stop() {
            return;
        }
    }
}

/// A call over HTTP that is under way. Dropping it gives it up.
#[derive(Debug)]
pub(super) struct HttpPending(JoinHandle<Result<Response, Error>>);

impl HttpPending {
    /// Returns true if the outcome is there.
    pub(super) fn has_ended(&self) -> bool {
        self.0.is_finished()
    }
}

impl Drop for HttpPending {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A call over HTTP whose body goes, and whose answer comes, piece by piece. Dropping it gives it up.
#[derive(Debug)]
pub(super) struct HttpStream {
    pieces: Option<mpsc::Sender<UploadChunk>>,
    begins: Option<ResponseTask>,
    source: Option<BodySource>,
}

impl HttpStream {
    pub(super) fn is_open(&self) -> bool {
        self.pieces
            .as_ref()
            .is_some_and(|pieces| !pieces.is_closed())
    }

    /// The body is complete.
    pub(super) fn finish_body(&mut self) {
        self.pieces = None;
    }

    /// A body that is not complete must not look as if it were.
    pub(super) fn give_up(self) {
        drop(self);
    }
}

impl Drop for HttpStream {
    fn drop(&mut self) {
        if let Some(pieces) = &self.pieces {
            let _ = pieces.try_send(Err("the caller gave it up".into()));
        }
        self.begins.iter().for_each(JoinHandle::abort);
    }
}
