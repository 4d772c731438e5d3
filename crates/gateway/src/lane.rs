//! What all connections of one thread share. Nothing in it is locked, and nothing of it leaves the thread.

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

use crate::deliver::{Answers, Domains, Lines, Pools};
use crate::listen::Lives;
use crate::record::{AccessLog, Totals};
use crate::route::Table;
use crate::{Control, Settings};

/// One thread's own things, and its handles on what all threads share.
pub(crate) struct Lane {
    /// The functions.
    pub table: Arc<Table>,
    /// Who wakes functions and answers the administrator.
    pub control: Arc<dyn Control>,
    /// Counters beside the functions'.
    pub totals: Arc<Totals>,
    /// Where requests are logged, if they are.
    pub log: Option<AccessLog>,
    /// `X-Served-By`.
    pub served_by: HeaderValue,
    /// See [`Settings::connect_timeout`].
    pub connect_timeout: Duration,
    /// See [`Settings::body_idle_timeout`].
    pub body_idle: Duration,
    /// See [`Settings::attempts`].
    pub attempts: usize,
    /// Connections to instances.
    pub pools: Pools,
    /// Those over QUIC.
    pub lines: Lines,
    /// Shared memory with instances.
    pub domains: Domains,
    /// Connections of callers.
    pub lives: Lives,
    /// Answers on their way to them.
    pub answers: Answers,
    tick: Arc<AtomicU32>,
    seed: Cell<u64>,
    /// Tick plus one at which the date was made, and the date.
    date: Cell<(u32, [u8; 29])>,
    cutting: Cell<bool>,
    /// Connections and tunnels that are not over.
    tasks: Cell<usize>,
    idle: Notify,
}

impl Lane {
    /// A thread's things, none used yet. `seed` should differ between threads.
    pub(crate) fn new(settings: &Settings, shared: &crate::Shared, seed: u64) -> Rc<Self> {
        Rc::new(Self {
            table: shared.table.clone(),
            control: shared.control.clone(),
            totals: shared.totals.clone(),
            log: shared.log.clone(),
            served_by: shared.served_by.clone(),
            connect_timeout: settings.connect_timeout,
            body_idle: settings.body_idle_timeout,
            attempts: settings.attempts.max(1),
            pools: Pools::default(),
            lines: Lines::new(shared.caller.clone()),
            domains: Domains::default(),
            lives: Lives::default(),
            answers: Answers::default(),
            tick: Arc::default(),
            seed: Cell::new(seed | 1),
            date: Cell::new((0, [0; 29])),
            cutting: Cell::new(false),
            tasks: Cell::new(0),
            idle: Notify::new(),
        })
    }

    /// A number that need not be unpredictable (xorshift64).
    pub(crate) fn random(&self) -> u64 {
        let mut x = self.seed.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.seed.set(x);
        x
    }

    /// Ticks so far, see [`crate::listen::TICK`]. Cheaper than asking for the time.
    pub(crate) fn now(&self) -> u32 {
        self.tick.load(Ordering::Relaxed)
    }

    /// The tick counter itself, for connections.
    pub(crate) fn ticks(&self) -> &Arc<AtomicU32> {
        &self.tick
    }

    /// The `Date` of an answer (RFC 9110 section 5.6.7), right to a tick.
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

    /// The drain's time is over: what ends from now on was cut.
    pub(crate) fn cut(&self) {
        self.cutting.set(true);
    }

    /// Whether the drain's time is over.
    pub(crate) fn is_cutting(&self) -> bool {
        self.cutting.get()
    }
}

pin_project_lite::pin_project! {
    /// A task with its count. An `async` block around the task would be twice as large, and is moved several times.
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
struct Task(Rc<Lane>);

impl Task {
    fn new(lane: &Rc<Lane>) -> Self {
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
