//! One thread's own state, and its handles on what all threads share.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use http::HeaderValue;
use tokio::sync::Notify;

use super::open_responses::OpenResponses;
use super::shared::Shared;
use crate::Settings;
use crate::control::Control;
use crate::function::Table;
use crate::record::{Recorder, Totals};
use crate::transport::{Domains, Lines, Pools};

/// The context of one serving thread.
pub(crate) struct WorkerContext {
    /// The functions that can be called.
    pub table: Arc<Table>,
    /// Wakes functions, and answers the administrator.
    pub control: Arc<dyn Control>,
    /// Counters beside the functions'.
    pub totals: Arc<Totals>,
    /// Records requests when they end.
    pub recorder: Rc<Recorder>,
    /// `X-Served-By`.
    pub served_by: HeaderValue,
    /// See [`Settings::connect_timeout`].
    pub connect_timeout: Duration,
    /// See [`Settings::body_idle_timeout`].
    pub body_idle: Duration,
    /// See [`Settings::attempts`].
    pub attempts: usize,
    /// Connections to instances over TCP.
    pub pools: Pools,
    /// Connections to instances over QUIC.
    pub lines: Lines,
    /// Endpoints in the security domains of instances.
    pub domains: Domains,
    /// Responses on their way to callers.
    pub open_responses: OpenResponses,
    tick: Arc<AtomicU32>,
    seed: Cell<u64>,
    /// Tick plus one at which the date was made, and the date.
    date: Cell<(u32, [u8; 29])>,
    /// Connections and tunnels that have not ended.
    tasks: Cell<usize>,
    idle: Notify,
}

impl WorkerContext {
    /// A thread's context, without connections. `seed` should differ between threads.
    pub(crate) fn new(settings: &Settings, shared: &Shared, seed: u64) -> Rc<Self> {
        Rc::new(Self {
            table: shared.table.clone(),
            control: shared.control.clone(),
            totals: shared.totals.clone(),
            recorder: Rc::new(Recorder::new(shared.totals.clone(), shared.log.clone())),
            served_by: shared.served_by.clone(),
            connect_timeout: settings.connect_timeout,
            body_idle: settings.body_idle_timeout,
            attempts: settings.attempts.max(1),
            pools: Pools::default(),
            lines: Lines::new(shared.caller.clone()),
            domains: Domains::default(),
            open_responses: OpenResponses::default(),
            tick: Arc::default(),
            seed: Cell::new(seed | 1),
            date: Cell::new((0, [0; 29])),
            tasks: Cell::new(0),
            idle: Notify::new(),
        })
    }

    /// Returns a number that need not be unpredictable (xorshift64).
    pub(crate) fn random(&self) -> u64 {
        let mut x = self.seed.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.seed.set(x);
        x
    }

    /// Returns the ticks so far, of a quarter of a second each. Cheaper than reading the clock.
    pub(crate) fn now(&self) -> u32 {
        self.tick.load(Ordering::Relaxed)
    }

    /// Returns the tick counter itself, for connections.
    pub(crate) fn ticks(&self) -> &Arc<AtomicU32> {
        &self.tick
    }

    /// Returns the `Date` of a response (RFC 9110 section 5.6.7), exact to a tick.
    pub(crate) fn date(&self) -> [u8; 29] {
        let (now, (at, date)) = (self.now(), self.date.get());
        if at == now.wrapping_add(1) {
            return date;
        }
        let text = httpdate::fmt_http_date(SystemTime::now());
        let date = text.as_bytes().try_into().expect("an HTTP date has 29 bytes");
        self.date.set((now.wrapping_add(1), date));
        date
    }

    /// Runs a connection or tunnel on this thread; the drain waits for it.
    pub(crate) fn spawn(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        tokio::task::spawn_local(Counted { task, _busy: Task::new(self) });
    }

    /// Waits until no connection and no tunnel is left.
    pub(crate) async fn settled(&self) {
        while self.tasks.get() > 0 {
            self.idle.notified().await;
        }
    }
}

pin_project_lite::pin_project! {
    // An `async` block around the task would be twice as large, and it is moved several times.
    /// A task and its count.
    struct Counted<F> {
        #[pin]
        task: F,
        _busy: Task,
    }
}

impl<F: Future<Output = ()>> Future for Counted<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.project().task.poll(cx)
    }
}

/// Counts a task for as long as it lives.
struct Task(Rc<WorkerContext>);

impl Task {
    fn new(lane: &Rc<WorkerContext>) -> Self {
        lane.tasks.set(lane.tasks.get() + 1);
        Self(lane.clone())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.tasks.set(self.0.tasks.get() - 1);
        self.0.idle.notify_one();
    }
}
