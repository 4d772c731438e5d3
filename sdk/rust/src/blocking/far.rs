//! Calls over HTTP from a thread that waits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;

use bytes::Bytes;
use nearpath_domain::clock::{self, Nanos};
use nearpath_domain::post::NotWanted;
use nearpath_shm::Knocker;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::exchange::Step;
use super::party::LOOK;
use super::unbroken;
use crate::ask::Ask;
use crate::body::Source;
use crate::context::Context;
use crate::error::{Error, Kind};
use crate::far::{Client, Piece, Upload, Way};
use crate::message::{Path, Response};

/// Connections to a gateway and the thread that tends them, for all threads of the process; it begins with the first call.
#[derive(Debug)]
pub(super) struct Far {
    client: Arc<Client>,
    runtime: OnceLock<Runtime>,
}

/// What says that a wait is to end.
pub(super) type Interrupt = Option<fn() -> bool>;

/// Wakes a thread that waits for several calls, in memory or not.
#[derive(Debug)]
pub(super) struct Bell {
    thread: Mutex<Thread>,
    pub(super) knocker: Mutex<Option<Knocker>>,
}

impl Default for Bell {
    fn default() -> Self {
        Self { thread: Mutex::new(std::thread::current()), knocker: Mutex::default() }
    }
}

impl Bell {
    /// It is this thread that waits.
    pub(super) fn here(&self) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = std::thread::current();
    }

    fn ring(&self) {
        if let Some(knocker) = &*self.knocker.lock().unwrap_or_else(PoisonError::into_inner) {
            knocker.deliver();
        }
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).unpark();
    }
}

/// Those of this process, by process and gateway: a child that was forked has the map of its parent, but not the threads.
static ALL: Mutex<BTreeMap<(u32, String), Arc<Far>>> = Mutex::new(BTreeMap::new());

impl Far {
    /// Those to a gateway: a thread that comes and goes finds the connections of others.
    pub(super) fn to(gateway: &str) -> Arc<Self> {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let far = all.entry((std::process::id(), gateway.to_owned()));
        Arc::clone(far.or_insert_with(|| {
            let client = Arc::new(Client::new(gateway.to_owned()));
            Arc::new(Self { client, runtime: OnceLock::new() })
        }))
    }

    pub(super) fn call(&self, way: Way, name: &str, body: &Bytes, ask: &Ask, with: Context) -> Result<Response, Error> {
        let runtime = self.runtime(name)?;
        runtime.block_on(self.client.call(way, name, body, ask, with))
    }

    /// Makes a call without waiting; the bell rings when it has ended.
    pub(super) fn begin(
        &self,
        name: &str,
        way: Way,
        body: Bytes,
        ask: &Ask,
        with: Context,
        bell: &Arc<Bell>,
    ) -> Result<Distant, Error> {
        let (client, name, ask, bell) = (Arc::clone(&self.client), name.to_owned(), ask.clone(), Arc::clone(bell));
        let runtime = self.runtime(&name)?;
        Ok(Distant(runtime.spawn(async move {
            let outcome = client.call(way, &name, &body, &ask, with).await;
            tokio::spawn(async move { bell.ring() }); // runs when this task has ended, and its outcome is there
            outcome
        })))
    }

    pub(super) fn wait(&self, name: &str, mut distant: Distant, interrupt: Interrupt) -> Result<Response, Error> {
        let lost = |why: String| Error::new(name, Some(Path::Http), Kind::Died(why));
        self.runtime(name)?.block_on(async {
            tokio::select! {
                biased;
                outcome = &mut distant.0 => outcome.map_err(|error| lost(error.to_string()))?,
                () = stopped(interrupt) => Err(lost("it was given up here".into())),
            }
        })
    }

    /// Begins a call whose body is written piece by piece.
    pub(super) fn open(&self, name: &str, way: Way, ask: &Ask, with: Context) -> Result<Distance, Error> {
        let (sender, upload) = Upload::new();
        let (client, named, ask) = (Arc::clone(&self.client), name.to_owned(), ask.clone());
        let begins = self.runtime(name)?.spawn(async move {
            let (response, incoming) = client.open(&named, way, upload, &ask, with).await?;
            Ok((response, Source::Far(incoming)))
        });
        Ok(Distance { pieces: Some(sender), begins: Some(begins), source: None })
    }

    /// Waits for what comes next.
    pub(super) fn step(
        &self,
        name: &str,
        distance: &mut Distance,
        writes: bool,
        until: Nanos,
        interrupt: Interrupt,
    ) -> Result<Step, Error> {
        let fault = |kind| Error::new(name, Some(Path::Http), kind);
        self.runtime(name)?.block_on(async {
            let Distance { pieces, begins, source } = distance;
            loop {
                tokio::select! {
                    biased;
                    begun = begun(begins) => {
                        *begins = None;
                        let (response, incoming) = begun.map_err(|error| fault(Kind::Died(error.to_string())))??;
                        *source = Some(incoming);
                        return Ok(Step::Begun(response));
                    }
                    part = next(source) => {
                        return part.map_or(Ok(Step::End), |part| part.map(Step::Part).map_err(fault));
                    }
                    room = room(pieces), if writes => match room {
                        true => return Ok(Step::Room),
                        false => *pieces = None,
                    },
                    () = late(until) => return Err(fault(Kind::Timeout)),
                    () = stopped(interrupt) => return Err(fault(Kind::Died("it was given up here".into()))),
                }
            }
        })
    }

    pub(super) fn write(&self, distance: &mut Distance, piece: Bytes) -> Result<(), NotWanted> {
        let pieces = distance.pieces.as_ref().ok_or(NotWanted)?;
        pieces.blocking_send(Ok(piece)).map_err(|_| NotWanted)
    }

    fn runtime(&self, name: &str) -> Result<&Runtime, Error> {
        if let Some(runtime) = self.runtime.get() {
            return Ok(runtime);
        }
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime =
            builder.worker_threads(1).thread_name("nearpath-http").on_thread_start(unbroken::here).enable_all().build();
        let runtime =
            runtime.map_err(|error| Error::new(name, None, Kind::Listen(format!("no event loop: {error}"))))?;
        Ok(self.runtime.get_or_init(|| runtime))
    }
}

type Begins = JoinHandle<Result<(Response, Source), Error>>;

async fn begun(begins: &mut Option<Begins>) -> Result<Result<(Response, Source), Error>, tokio::task::JoinError> {
    match begins {
        Some(begins) => begins.await,
        None => std::future::pending().await,
    }
}

async fn next(source: &mut Option<Source>) -> Option<Result<Bytes, Kind>> {
    match source {
        Some(source) => std::future::poll_fn(|cx| source.poll(cx)).await,
        None => std::future::pending().await,
    }
}

/// Whether there is room for a piece: false when nobody wants any.
async fn room(pieces: &Option<mpsc::Sender<Piece>>) -> bool {
    match pieces {
        Some(pieces) => pieces.reserve().await.is_ok(),
        None => std::future::pending().await,
    }
}

async fn late(deadline: Nanos) {
    match deadline {
        0 => std::future::pending().await,
        deadline => tokio::time::sleep(clock::until(deadline)).await,
    }
}

async fn stopped(interrupt: Interrupt) {
    let Some(stop) = interrupt else { return std::future::pending().await };
    loop {
        tokio::time::sleep(LOOK).await;
        if stop() {
            return;
        }
    }
}

/// A call over HTTP that is under way. Dropping it gives it up.
#[derive(Debug)]
pub(super) struct Distant(JoinHandle<Result<Response, Error>>);

impl Distant {
    /// Whether its outcome is there.
    pub(super) fn has_ended(&self) -> bool {
        self.0.is_finished()
    }
}

impl Drop for Distant {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A call over HTTP whose body goes, and whose answer comes, piece by piece. Dropping it gives it up.
#[derive(Debug)]
pub(super) struct Distance {
    pieces: Option<mpsc::Sender<Piece>>,
    begins: Option<Begins>,
    source: Option<Source>,
}

impl Distance {
    pub(super) fn is_open(&self) -> bool {
        self.pieces.as_ref().is_some_and(|pieces| !pieces.is_closed())
    }

    /// The body is complete.
    pub(super) fn finish(&mut self) {
        self.pieces = None;
    }

    /// A body that is not complete must not look as if it were.
    pub(super) fn give_up(self) {
        drop(self);
    }
}

impl Drop for Distance {
    fn drop(&mut self) {
        if let Some(pieces) = &self.pieces {
            let _ = pieces.try_send(Err("the caller gave it up".into()));
        }
        self.begins.iter().for_each(JoinHandle::abort);
    }
}
