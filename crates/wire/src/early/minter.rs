//! Where sessions are minted: beside requests, however many workers start at once.
//!
//! A mint costs some 0.6 ms of a processor. When a thousand instances start together that is half a second, which must not be taken from
//! calls: so there are few threads, of the lowest priority that still gets somewhere, and what they have not come to waits in line. The
//! line is bounded. Who finds it full starts without a session, and so does who is called before its turn: its first call waits for
//! a handshake.
//!
//! ```
//! use nearpath_wire::early::Minter;
//!
//! let minter = Minter::start(Minter::THREADS, Minter::ROOM)?;
//! let (frames, coming) = std::sync::mpsc::channel();
//! let order = minter.order(move || {
//!     // here: make a key, have its certificate issued, mint (`mint::for_worker`), write the provision
//!     frames.send("provision").map_err(|_| "nobody wants it any more")
//! })?;
//! assert_eq!(coming.recv()?, "provision");
//! drop(order); // the instance is gone: what has not begun is taken out of the line
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::queue::{Full, Numbers, Queue};

/// One order: whether it came to what was wanted.
type Work = Box<dyn FnOnce() -> bool + Send>;

/// The lowest priority of ordinary threads (sched(7)): beside one that works it gets 1.5 % of a processor, and every one that wakes up goes before it.
const LOWEST: i32 = 19;

/// See the module's text. When it is dropped, what has not begun is forgotten, and its threads end.
pub struct Minter {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

struct State {
    queue: Queue<Work>,
    closed: bool,
}

/// An order that was taken. Dropped, it is taken out of the line, unless it has begun.
#[must_use = "dropped, the order is cancelled"]
pub struct Order(Option<Arc<Shared>>, u64);

impl Minter {
    /// As many threads as are of use: one a processor, but two at the most.
    pub const THREADS: usize = 2;
    /// How many may wait: what starts at once on a large machine.
    pub const ROOM: usize = 4096;

    /// Starts `threads` threads; `room` orders may wait.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(threads: usize, room: usize) -> io::Result<Self> {
        let state = Mutex::new(State { queue: Queue::new(room), closed: false });
        let shared = Arc::new(Shared { state, work: Condvar::new() });
        let mut minter = Self { shared, threads: Vec::new() };
        for number in 0..threads {
            let shared = Arc::clone(&minter.shared);
            let thread = Builder::new().name(format!("minter-{number}")).spawn(move || shared.run())?;
            minter.threads.push(thread);
        }
        Ok(minter)
    }

    /// Has `work` done when its turn comes. It hands over by itself what it makes; an error, or a panic, counts as failed.
    ///
    /// # Errors
    /// When as many wait as may.
    pub fn order<T, E>(&self, work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<Order, Full> {
        let number = self.shared.lock().queue.push(Box::new(move || work().is_ok()), Instant::now())?;
        self.shared.work.notify_one();
        Ok(Order(Some(Arc::clone(&self.shared)), number))
    }

    /// What became of all orders so far.
    pub fn numbers(&self) -> Numbers {
        self.shared.lock().queue.numbers()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread's life.
    fn run(&self) {
        let _ = rustix::process::nice(LOWEST); // of this thread alone; to lower it nobody needs a right
        while let Some(work) = self.next() {
            let before = cpu();
            let well = catch_unwind(AssertUnwindSafe(work)).unwrap_or(false); // what it used went with it
            self.lock().queue.ended(well, cpu().saturating_sub(before));
        }
    }

    /// Waits for the next order; nothing when there will be none.
    fn next(&self) -> Option<Work> {
        let mut state = self.lock();
        while !state.closed {
            if let Some(work) = state.queue.take(Instant::now()) {
                return Some(work);
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }
}

/// What the calling thread has used of a processor.
fn cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

impl Order {
    /// Lets it be done, whatever becomes of this handle.
    pub fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Order {
    fn drop(&mut self) {
        let Some(shared) = self.0.take() else { return };
        let work = shared.lock().queue.cancel(self.1);
        drop(work); // outside of the lock: what it holds may be an order itself
    }
}

impl Drop for Minter {
    fn drop(&mut self) {
        let waiting = self.shared.lock().close();
        self.shared.work.notify_all();
        drop(waiting);
        let own = std::thread::current().id(); // an order may hold the last handle of its minter
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != own) {
            let _ = thread.join(); // panics were caught
        }
    }
}

impl State {
    /// There will be no more work: what has not begun.
    fn close(&mut self) -> Vec<Work> {
        self.closed = true;
        std::iter::from_fn(|| self.queue.drop_first()).collect()
    }
}

impl fmt::Debug for Minter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Minter({:?})", self.numbers())
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Order({})", self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Work that says that it began, and waits until it may end.
    fn held() -> (impl FnOnce() -> Result<(), ()> + Send, Receiver<()>, Sender<()>) {
        let ((began, beginning), (go, wait)) = (channel(), channel());
        let work = move || {
            began.send(()).unwrap();
            wait.recv().map_err(|_| ())
        };
        (work, beginning, go)
    }

    /// A minter of one thread, which is busy until the sender says so.
    fn busy(room: usize) -> (Minter, Sender<()>) {
        let minter = Minter::start(1, room).unwrap();
        let (work, beginning, go) = held();
        minter.order(work).unwrap().keep();
        beginning.recv().unwrap();
        (minter, go)
    }

    #[test]
    fn first_come_first_served_and_what_nobody_wants_is_not_done() {
        let ((minter, go), (tell, told)) = (busy(4), channel());
        let mut orders: Vec<_> = (0..4)
            .map(|number| {
                let tell = tell.clone();
                minter.order(move || tell.send(number)).unwrap()
            })
            .collect();
        assert_eq!(minter.order(|| Ok::<_, ()>(())).unwrap_err(), Full(4));
        drop(orders.remove(1));
        drop(tell);
        go.send(()).unwrap();
        assert_eq!(told.iter().collect::<Vec<_>>(), [0, 2, 3]);
        drop(orders);
        let numbers = minter.numbers();
        assert_eq!((numbers.cancelled, numbers.refused, numbers.failed), (1, 1, 0));
    }

    #[test]
    fn a_panic_and_an_error_count_as_failed_and_the_thread_goes_on() {
        let (minter, go) = busy(4);
        let (tell, told) = channel();
        minter.order(|| -> Result<(), ()> { panic!("as told, in a test") }).unwrap().keep();
        minter.order(|| Err::<(), _>(())).unwrap().keep();
        minter.order(move || tell.send(())).unwrap().keep();
        go.send(()).unwrap();
        told.recv().unwrap();
        assert_eq!((minter.numbers().failed, minter.numbers().waiting), (2, 0));
    }

    #[test]
    fn what_has_not_begun_goes_with_the_minter() {
        let (minter, go) = busy(4);
        let (tell, told) = channel::<()>();
        let order = minter.order(move || tell.send(())).unwrap();
        let ending = std::thread::spawn(move || drop(minter));
        told.recv().unwrap_err(); // it waits for the work that runs, but what waits is gone by then
        go.send(()).unwrap();
        ending.join().unwrap();
        drop(order);
    }

    #[test]
    fn its_threads_are_of_low_priority() {
        let minter = Minter::start(1, 1).unwrap();
        let (tell, told) = channel();
        let order = minter.order(move || tell.send(rustix::process::getpriority_process(None))).unwrap();
        assert_eq!(told.recv().unwrap().unwrap(), LOWEST);
        assert_ne!(rustix::process::getpriority_process(None).unwrap(), LOWEST, "nobody else is");
        drop(order);
    }
}
