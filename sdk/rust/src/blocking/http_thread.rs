//! HTTP beside shared memory: one thread reads requests and writes answers; the endpoint's thread handles them.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nearpath_shm::WakeupSignal;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::LocalSet;

use super::active_response::{HttpRequest, hand_to_thread};
use super::sigpipe;
use crate::error::Error;
use crate::http_listener;
use crate::message::Request;
use crate::server::{HandlerService, bind_listener, listen_error, setup_error};

/// State shared by the two threads.
#[derive(Debug, Default)]
pub(super) struct ThreadLink {
    /// Wakes the endpoint's thread while it is in a domain.
    signal: Mutex<Option<WakeupSignal>>,
    stop: AtomicBool,
    thread_end: Notify,
}

impl ThreadLink {
    pub(super) fn set_signal(&self, knocker: Option<WakeupSignal>) {
        *self.signal.lock().unwrap_or_else(PoisonError::into_inner) = knocker;
    }

    /// Returns true if a stop was requested.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Asks the endpoint's thread to stop.
    pub(super) fn request_stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake_thread();
    }

    fn wake_thread(&self) {
        if let Some(knocker) = &*self.signal.lock().unwrap_or_else(PoisonError::into_inner) {
            knocker.notify_control();
        }
    }
}

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct HttpThread {
    pub(super) link: Arc<ThreadLink>,
    pub(super) requests: Receiver<HttpRequest>,
    thread: Option<JoinHandle<()>>,
}

impl HttpThread {
    /// Starts listening. `streams` hands requests over when they begin; with `signals`, SIGTERM and SIGINT request a stop.
    pub(super) fn start(address: SocketAddr, streams: bool, signals: bool) -> Result<Self, Error> {
        let listener = bind_listener(address).map_err(|error| listen_error(address, &error))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| setup_error(format!("no event loop: {error}")))?;
        let (between, (sender, visitors)) = (Arc::new(ThreadLink::default()), channel());
        let inner = Arc::clone(&between);
        let work = move || {
            sigpipe::block_sigpipe();
            LocalSet::new().block_on(
                &runtime,
                serve_http(listener, streams, sender, inner, signals),
            );
        };
        let thread = std::thread::Builder::new()
            .name("nearpath-listen".into())
            .spawn(work);
        let thread = thread.map_err(|error| setup_error(format!("no thread for HTTP: {error}")))?;
        Ok(Self {
            link: between,
            requests: visitors,
            thread: Some(thread),
        })
    }
}

impl Drop for HttpThread {
    fn drop(&mut self) {
        drop(std::mem::replace(&mut self.requests, channel().1)); // waiting callers see that the thread has ended
        self.link.thread_end.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve_http(
    listener: std::net::TcpListener,
    streams: bool,
    sender: Sender<HttpRequest>,
    between: Arc<ThreadLink>,
    signals: bool,
) {
    let Ok(listener) = TcpListener::from_std(listener) else {
        return between.request_stop();
    };
    let waking = Arc::clone(&between);
    let handler = move |request: Request| {
        let (sender, waking) = (sender.clone(), Arc::clone(&waking));
        hand_to_thread(request, move |visitor| {
            let sent = sender.send(visitor).is_ok();
            waking.wake_thread();
            sent
        })
    };
    let service = Rc::new(HandlerService::new(handler, streams));
    tokio::select! {
        () = http_listener::accept_connections(listener, Rc::clone(&service)) => {}
        () = wait_for_signal(&between, signals) => {}
        () = between.thread_end.notified() => {}
    }
    // Answers that are made go out.
    let _ = tokio::time::timeout(
        std::time::Duration::from_secs(1),
        service.open_work.drain_all(),
    )
    .await;
}

/// Requests a stop at a signal, then never returns: the stop ends this thread.
async fn wait_for_signal(between: &ThreadLink, signals: bool) {
    let both = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    );
    if let (true, (Ok(mut term), Ok(mut int))) = (signals, both) {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        between.request_stop();
    }
    std::future::pending().await
}
