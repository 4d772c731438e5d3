//! From one caller to the next, until the window ends and the last answer has come.

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

use super::line::{Heard, Line};
use super::{Caller, Loaded};
use crate::load::Window;
use crate::load::connection::PATIENCE;
use crate::tally::{Failure, Tally};

/// Events that are taken at a time.
const EVENTS: usize = 256;
/// A dead server is not asked at full speed.
const REST: Duration = Duration::from_millis(1);
/// How often those are looked for who wait for ever.
const LOOK: Duration = Duration::from_secs(1);

/// All callers of a load.
pub(super) struct Round<C> {
    epoll: OwnedFd,
    addr: SocketAddr,
    from: Instant,
    until: Instant,
    seats: Vec<Seat<C>>,
    /// How many seats have not ended.
    busy: usize,
    /// Seats that ask again later, and when; all rest equally long, so the first is the next.
    resting: VecDeque<(Instant, usize)>,
    scratch: Vec<u8>,
    tally: Tally,
    meter: Meter,
}

struct Seat<C> {
    caller: C,
    line: Option<Line>,
    /// When it asked what has not been answered yet.
    since: Option<Instant>,
}

impl<C: Caller> Round<C> {
    pub(super) fn new(addr: SocketAddr, callers: Vec<C>, window: Window) -> io::Result<Self> {
        let (from, until) = (window.from.into_std(), window.until.into_std());
        let seat = |caller| Seat {
            caller,
            line: None,
            since: None,
        };
        let seats: Vec<_> = callers.into_iter().map(seat).collect();
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            addr,
            from,
            until,
            busy: seats.len(),
            seats,
            resting: VecDeque::new(),
            scratch: vec![0; 64 << 10],
            tally: Tally::default(),
            meter: Meter::default(),
        })
    }

    /// Asks and hears until everybody has ended.
    pub(super) fn run(mut self) -> io::Result<Loaded> {
        let mut now = Instant::now();
        (0..self.seats.len()).for_each(|number| self.ask(number, now));
        let (mut events, mut looked) = (Vec::with_capacity(EVENTS), now);
        while self.busy > 0 {
            let timeout = self.timeout(now);
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            now = Instant::now();
            self.meter.at(now, self.from, self.until);
            for event in &events {
                now = self.hear(event);
            }
            self.wake(now);
            if now - looked > LOOK {
                looked = now;
                self.look(now);
            }
        }
        self.meter.at(now.max(self.until), self.from, self.until);
        Ok(Loaded {
            own: self.meter.spent(),
            tally: self.tally,
        })
    }

    /// Until somebody has rested, a mark of the window is reached, or somebody has to be looked for.
    fn timeout(&self, now: Instant) -> Timespec {
        let marks = [self.from, self.until]
            .into_iter()
            .filter(|mark| *mark > now);
        let rested = self.resting.front().map(|(until, _)| *until);
        let next = marks.chain(rested).fold(now + LOOK, Instant::min);
        let left = next.saturating_duration_since(now);
        Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        }
    }

    fn ask(&mut self, number: usize, now: Instant) {
        let Some(seat) = self.seats.get_mut(number) else {
            return;
        };
        if now >= self.until {
            (seat.since, seat.line) = (None, None);
            self.busy -= 1;
            return;
        }
        seat.since = Some(now);
        let mut line = match seat
            .line
            .take()
            .map_or_else(|| Line::open(&self.epoll, self.addr, number as u64), Ok)
        {
            Ok(line) => line,
            Err(_) => return self.fail(number, Failure::Connect, now),
        };
        match line.ask(&self.epoll, number as u64, seat.caller.request()) {
            Ok(()) => seat.line = Some(line),
            Err(error) => self.fail(number, kind(&error), now),
        }
    }

    /// What an event is about. Returns when it was done with.
    fn hear(&mut self, event: &Event) -> Instant {
        let (number, flags) = (event.data.u64() as usize, event.flags);
        let Some(Seat {
            caller,
            line: Some(line),
            since: Some(since),
        }) = self.seats.get_mut(number)
        else {
            return Instant::now(); // of a connection that is no more
        };
        let since = *since;
        let sent = if flags.contains(EventFlags::OUT) {
            line.send_rest(&self.epoll, number as u64)
        } else {
            Ok(())
        };
        let read = sent.and_then(|()| line.read(&mut self.scratch));
        let now = Instant::now();
        let (outcome, last) = match read {
            Ok(Heard::Part) => return now,
            Ok(Heard::Whole(shape, bytes)) => (caller.heard(shape.body(bytes)), shape.last),
            Err(error) => {
                self.fail(number, kind(&error), now);
                return now;
            }
        };
        line.forget();
        let failed = outcome.is_err();
        self.count(now, outcome.map(|()| now - since));
        self.go_on(number, last || failed, failed, now);
        now
    }

    /// Asks again: on a new connection, after a rest.
    fn go_on(&mut self, number: usize, anew: bool, rests: bool, now: Instant) {
        let Some(seat) = self.seats.get_mut(number) else {
            return;
        };
        if anew {
            seat.line = None;
        }
        seat.since = None;
        match rests {
            true => self.resting.push_back((now + REST, number)),
            false => self.ask(number, now),
        }
    }

    fn fail(&mut self, number: usize, failure: Failure, now: Instant) {
        let Some(seat) = self.seats.get_mut(number) else {
            return;
        };
        let outcome = seat.caller.heard(Err(failure)).map(|()| Duration::ZERO);
        self.count(now, outcome);
        self.go_on(number, true, true, now);
    }

    fn count(&mut self, now: Instant, outcome: Result<Duration, Failure>) {
        if self.from <= now && now < self.until {
            self.tally.add(outcome);
        }
    }

    /// Those who have rested go on.
    fn wake(&mut self, now: Instant) {
        while let Some((until, number)) = self.resting.front().copied()
            && until <= now
        {
            self.resting.pop_front();
            self.ask(number, now);
        }
    }

    /// Those who have waited too long have failed, also after the window: they asked in it.
    fn look(&mut self, now: Instant) {
        for number in 0..self.seats.len() {
            let seat = &mut self.seats[number];
            if seat
                .since
                .is_some_and(|since| now.saturating_duration_since(since) >= PATIENCE)
            {
                self.tally
                    .add(seat.caller.heard(Err(Failure::Timeout)).map(|()| PATIENCE));
                self.go_on(number, true, true, now);
            }
        }
    }
}

/// No connection, or one that broke.
fn kind(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Failure::Connect,
        _ => Failure::Broken,
    }
}

/// CPU time of this thread when the window began, and when it ended.
#[derive(Default)]
struct Meter {
    from: Option<Duration>,
    until: Option<Duration>,
}

impl Meter {
    /// To be told of every moment: the first one after each mark counts.
    fn at(&mut self, now: Instant, from: Instant, until: Instant) {
        if self.from.is_none() && now >= from {
            self.from = Some(thread_time());
        }
        if self.until.is_none() && now >= until {
            self.until = Some(thread_time());
        }
    }

    fn spent(&self) -> Duration {
        self.until
            .unwrap_or_default()
            .saturating_sub(self.from.unwrap_or_default())
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
