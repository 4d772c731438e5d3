//! The event loop of all callers, until the window ends and the last response has arrived.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::connection::{EpollConnection, ReadOutcome};
use super::{LoadCaller, LoadResult};
use crate::load::MeasureWindow;
use crate::load::closed::ConnectionReuse;
use crate::load::connection::REQUEST_TIMEOUT;
use crate::tally::{RequestFailure, RequestTally};

/// Maximum of events per epoll call.
// As many as a burst of callers brings; more are delivered by the next wait.
const MAX_EVENTS: usize = 256;
/// Delay before a retry, so that a dead server does not get requests at full speed.
const RETRY_DELAY: Duration = Duration::from_millis(1);
/// Interval between checks for overdue requests.
const TIMEOUT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// All callers of a load.
pub(super) struct CallerLoop<C> {
    epoll: OwnedFd,
    addr: SocketAddr,
    reuse: ConnectionReuse,
    from: Instant,
    until: Instant,
    states: Vec<CallerState<C>>,
    /// Number of active callers.
    busy: usize,
    /// Callers that retry later, with their times; the delay is constant, so the first is the next.
    resting: VecDeque<(Instant, usize)>,
    scratch: Vec<u8>,
    tally: RequestTally,
    meter: ThreadMeter,
}

struct CallerState<C> {
    caller: C,
    line: Option<EpollConnection>,
    /// Start time of the request without a response.
    since: Option<Instant>,
}

impl<C: LoadCaller> CallerLoop<C> {
    pub(super) fn new(
        addr: SocketAddr,
        callers: Vec<C>,
        reuse: ConnectionReuse,
        window: MeasureWindow,
    ) -> io::Result<Self> {
        let (from, until) = (window.from.into_std(), window.until.into_std());
        let state = |caller| CallerState {
            caller,
            line: None,
            since: None,
        };
        let states: Vec<_> = callers.into_iter().map(state).collect();
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            addr,
            reuse,
            from,
            until,
            busy: states.len(),
            states,
            resting: VecDeque::new(),
            // One buffer for all callers: it stays in the cache, and answers of the comparisons fit
            // into it.
            scratch: vec![0; 64 << 10],
            tally: RequestTally::default(),
            meter: ThreadMeter::default(),
        })
    }

    /// Runs until all callers have ended.
    pub(super) fn run(mut self) -> io::Result<LoadResult> {
        let mut now = Instant::now();
        // All callers start at once; the warm-up absorbs the burst.
        (0..self.states.len()).for_each(|number| self.send_next(number, now));
        let (mut events, mut looked) = (Vec::with_capacity(MAX_EVENTS), now);
        while self.busy > 0 {
            let timeout = self.next_timeout(now);
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
                // A signal is no reason to stop; the timeout is computed again.
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            // Read again: the wait may have lasted long, and the marks of the window would be taken
            // late.
            now = Instant::now();
            // Without callers the loop above never runs; the marks must be taken anyway.
            self.meter.note_moment(now, self.from, self.until);
            for event in &events {
                now = self.handle_event(event);
            }
            self.resume_delayed(now);
            if now - looked > TIMEOUT_CHECK_INTERVAL {
                looked = now;
                self.fail_overdue(now);
            }
        }
        self.meter
            .note_moment(now.max(self.until), self.from, self.until);
        Ok(LoadResult {
            own: self.meter.cpu_spent(),
            tally: self.tally,
        })
    }

    /// Returns the time until the next retry, window mark or timeout check.
    fn next_timeout(&self, now: Instant) -> Timespec {
        let marks = [self.from, self.until]
            .into_iter()
            .filter(|mark| *mark > now);
        let rested = self.resting.front().map(|(until, _)| *until);
        let next = marks
            .chain(rested)
            .fold(now + TIMEOUT_CHECK_INTERVAL, Instant::min);
        let left = next.saturating_duration_since(now);
        Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        }
    }

    fn send_next(&mut self, number: usize, now: Instant) {
        let Some(state) = self.states.get_mut(number) else {
            return;
        };
        if now >= self.until {
            (state.since, state.line) = (None, None);
            // A caller ends only here, between two requests, so no answer is abandoned.
            self.busy -= 1;
            return;
        }
        // Before the connection opens: a new connection is part of the latency.
        state.since = Some(now);
        let mut line = match state.line.take().map_or_else(
            || EpollConnection::open(&self.epoll, self.addr, number as u64),
            Ok,
        ) {
            Ok(line) => line,
            Err(_) => return self.fail_request(number, RequestFailure::Connect, now),
        };
        match line.send_request(&self.epoll, number as u64, state.caller.next_request()) {
            Ok(()) => state.line = Some(line),
            Err(error) => self.fail_request(number, failure_kind(&error), now),
        }
    }

    /// Handles an event and returns the time after it.
    fn handle_event(&mut self, event: &Event) -> Instant {
        let (number, flags) = (event.data.u64() as usize, event.flags);
        let Some(CallerState {
            caller,
            line: Some(line),
            since: Some(since),
        }) = self.states.get_mut(number)
        else {
            // An event can be pending for a socket that was replaced in the same batch.
            return Instant::now(); // of a connection that is no more
        };
        let since = *since;
        // Rest first: the server answers only a complete request.
        let sent = if flags.contains(EventFlags::OUT) {
            line.send_rest(&self.epoll, number as u64)
        } else {
            Ok(())
        };
        let read = sent.and_then(|()| line.read_response(&mut self.scratch));
        let now = Instant::now();
        let (outcome, last) = match read {
            Ok(ReadOutcome::Part) => return now,
            Ok(ReadOutcome::Whole(shape, bytes)) => {
                (caller.handle_outcome(shape.success_body(bytes)), shape.last)
            }
            Err(error) => {
                self.fail_request(number, failure_kind(&error), now);
                return now;
            }
        };
        // After `handle_outcome`, which borrows the bytes.
        line.clear_response();
        let failed = outcome.is_err();
        // A client that sent `close` must not send on this connection again, although many servers
        // close it without `close` in the response (RFC 9112, section 9.6).
        let last = last || self.reuse == ConnectionReuse::Fresh;
        self.count_outcome(now, outcome.map(|()| now - since));
        self.schedule_next(number, last || failed, failed, now);
        now
    }

    /// Schedules a retry on a new connection, after the delay.
    fn schedule_next(&mut self, number: usize, anew: bool, rests: bool, now: Instant) {
        let Some(state) = self.states.get_mut(number) else {
            return;
        };
        if anew {
            state.line = None;
        }
        state.since = None;
        match rests {
            // The rests are equally long, so pushing at the back keeps the queue sorted.
            true => self.resting.push_back((now + RETRY_DELAY, number)),
            false => self.send_next(number, now),
        }
    }

    fn fail_request(&mut self, number: usize, failure: RequestFailure, now: Instant) {
        let Some(state) = self.states.get_mut(number) else {
            return;
        };
        let outcome = state
            .caller
            .handle_outcome(Err(failure))
            .map(|()| Duration::ZERO);
        self.count_outcome(now, outcome);
        // A new connection: bytes of the failed answer could follow on the old one.
        self.schedule_next(number, true, true, now);
    }

    fn count_outcome(&mut self, now: Instant, outcome: Result<Duration, RequestFailure>) {
        if self.from <= now && now < self.until {
            self.tally.record_outcome(outcome);
        }
    }

    /// Resumes callers whose delay has ended.
    fn resume_delayed(&mut self, now: Instant) {
        while let Some((until, number)) = self.resting.front().copied()
            && until <= now
        {
            self.resting.pop_front();
            self.send_next(number, now);
        }
    }

    /// Fails overdue requests, also after the window: they started within it.
    fn fail_overdue(&mut self, now: Instant) {
        for number in 0..self.states.len() {
            let state = &mut self.states[number];
            if state
                .since
                .is_some_and(|since| now.saturating_duration_since(since) >= REQUEST_TIMEOUT)
            {
                self.tally.record_outcome(
                    state
                        .caller
                        .handle_outcome(Err(RequestFailure::Timeout))
                        .map(|()| REQUEST_TIMEOUT),
                );
                self.schedule_next(number, true, true, now);
            }
        }
    }
}

/// Returns the failure kind of an error: no connection, or a broken one.
fn failure_kind(error: &io::Error) -> RequestFailure {
    match error.kind() {
        // A non-blocking connect reports its refusal at the first send or read.
        io::ErrorKind::ConnectionRefused => RequestFailure::Connect,
        _ => RequestFailure::Broken,
    }
}

/// CPU time of this thread when the window began, and when it ended.
#[derive(Default)]
struct ThreadMeter {
    from: Option<Duration>,
    until: Option<Duration>,
}

impl ThreadMeter {
    /// Must be called for every event time: the first one after each mark counts.
    fn note_moment(&mut self, now: Instant, from: Instant, until: Instant) {
        if self.from.is_none() && now >= from {
            self.from = Some(thread_time());
        }
        if self.until.is_none() && now >= until {
            self.until = Some(thread_time());
        }
    }

    fn cpu_spent(&self) -> Duration {
        self.until
            .unwrap_or_default()
            .saturating_sub(self.from.unwrap_or_default())
    }
}

fn thread_time() -> Duration {
    // Of the thread, not the process: other threads of the program belong to other parts.
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
