//! HTTP beside shared memory: a thread reads requests and writes answers; the party's thread handles them.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nearpath_shm::Knocker;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::LocalSet;

use super::answering::{Visitor, visit};
use super::unbroken;
use crate::error::Error;
use crate::listen;
use crate::message::Request;
use crate::server::{Service, fault, listener, taken};

/// What the two threads share.
#[derive(Debug, Default)]
pub(super) struct Between {
    /// Wakes the party's thread, while that is in a domain.
    knocker: Mutex<Option<Knocker>>,
    stop: AtomicBool,
    gone: Notify,
}

impl Between {
    pub(super) fn at(&self, knocker: Option<Knocker>) {
        *self.knocker.lock().unwrap_or_else(PoisonError::into_inner) = knocker;
    }

    /// Whether the process was told to stop.
    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Tells the party's thread to stop.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        if let Some(knocker) = &*self.knocker.lock().unwrap_or_else(PoisonError::into_inner) {
            knocker.deliver();
        }
    }
}

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Beside {
    pub(super) between: Arc<Between>,
    pub(super) visitors: Receiver<Visitor>,
    thread: Option<JoinHandle<()>>,
}

impl Beside {
    /// Listens; `streams`: requests are handed over when they begin. With `signals`, SIGTERM and SIGINT stop the party's thread.
    pub(super) fn start(address: SocketAddr, streams: bool, signals: bool) -> Result<Self, Error> {
        let listener = listener(address).map_err(|error| taken(address, &error))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| fault(format!("no event loop: {error}")))?;
        let (between, (sender, visitors)) = (Arc::new(Between::default()), channel());
        let inner = Arc::clone(&between);
        let work = move || {
            unbroken::here();
            LocalSet::new().block_on(&runtime, attend(listener, streams, sender, inner, signals));
        };
        let thread = std::thread::Builder::new().name("nearpath-listen".into()).spawn(work);
        let thread = thread.map_err(|error| fault(format!("no thread for HTTP: {error}")))?;
        Ok(Self { between, visitors, thread: Some(thread) })
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        drop(std::mem::replace(&mut self.visitors, channel().1)); // who waits there is told that nobody comes
        self.between.gone.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn attend(
    listener: std::net::TcpListener,
    streams: bool,
    sender: Sender<Visitor>,
    between: Arc<Between>,
    signals: bool,
) {
    let Ok(listener) = TcpListener::from_std(listener) else { return between.stop() };
    let waking = Arc::clone(&between);
    let handler = move |request: Request| {
        let (sender, waking) = (sender.clone(), Arc::clone(&waking));
        visit(request, move |visitor| {
            let sent = sender.send(visitor).is_ok();
            waking.wake();
            sent
        })
    };
    let service = Rc::new(Service::new(handler, streams));
    tokio::select! {
        () = listen::accept(listener, Rc::clone(&service)) => {}
        () = told(&between, signals) => {}
        () = between.gone.notified() => {}
    }
    // Answers that are made go out.
    let _ = tokio::time::timeout(std::time::Duration::from_secs(1), service.open.end()).await;
}

/// Stops the party's thread at a signal, then waits for ever: it ends this one.
async fn told(between: &Between, signals: bool) {
    let both = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    if let (true, (Ok(mut term), Ok(mut int))) = (signals, both) {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        between.stop();
    }
    std::future::pending().await
}
