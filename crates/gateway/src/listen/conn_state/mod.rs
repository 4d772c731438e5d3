//! State of a client connection, for its timeouts: idle, slow head, blocked write.
//!
//! A sweep each [`TICK_INTERVAL`](crate::context::TICK_INTERVAL) checks every connection of a thread, so that no request needs a
//! timer for this. The check is a pure function of a few numbers, which the connection updates
//! with plain stores.

mod table;
mod timeouts;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};

use nearpath_daemon::drain::DrainCause;
use nearpath_wire::lingering_close::UnreadInput;

pub(crate) use table::ConnTable;
use timeouts::ConnSnapshot;
pub(super) use timeouts::{ConnTimeouts, whole_ticks};

const CUT_FLAG: u8 = 2;
const DRAIN_FLAG: u8 = 1;
const DRAIN_AFTER_FIRST_FLAG: u8 = 4;
/// Ticks for which an accepted connection may send its first request although the drain of a
/// stopping process has begun. Its client cannot know of the drain and would take a close for a
/// failure.
const FIRST_REQUEST_GRACE_TICKS: u32 = 4;

/// State of one connection for the sweep. Atomic only because hyper requires upgradable
/// connections to be `Send`.
#[derive(Debug)]
pub(crate) struct ConnState {
    // All accesses are relaxed: connection, sweep and requests run on the same thread.
    current_tick: Arc<AtomicU32>,
    /// Tick at which the first request became due.
    first_request_due: AtomicU32,
    /// A request has begun at some time.
    has_begun_request: AtomicBool,
    open_requests: AtomicU32,
    head_has_begun: AtomicBool,
    changed_at: AtomicU32,
    /// Tick plus one of the first blocked write; 0: not blocked.
    write_blocked: AtomicU32,
    /// Responses with data that the caller has not read.
    untaken_responses: AtomicU32,
    /// Tick at which the caller last read a part of a response.
    last_taken: AtomicU32,
    is_http2: AtomicBool,
    /// Tick plus one of the last bytes over HTTP/2, or of the drain or the end of a request after
    /// them; 0: none, as over HTTP/1 and HTTP/3.
    last_http2_read: AtomicU32,
    /// The protocol is known, so the connection can end by its rules.
    protocol_known: AtomicBool,
    http_has_ended: AtomicBool,
    /// A request is being answered, or its response is not completely written.
    answering: AtomicBool,
    /// The last request has no body, so the caller sends nothing more before the response.
    request_is_complete: AtomicBool,
    /// Tick plus one at which reading was paused; 0: reading.
    read_paused: AtomicU32,
    end_flags: AtomicU8,
    /// Another node follows the state of this one. Such a connection lasts as long as the thread.
    is_service: AtomicBool,
    /// Says whether the client may still be sending a request that was answered.
    pub(crate) unread_input: UnreadInput,
    waker: OnceLock<Waker>,
}

impl ConnState {
    /// Creates the state of a new connection, whose first request is due.
    pub(crate) fn new(now: &Arc<AtomicU32>) -> Arc<Self> {
        Arc::new(Self {
            changed_at: AtomicU32::new(now.load(Ordering::Relaxed)),
            first_request_due: AtomicU32::new(now.load(Ordering::Relaxed)),
            has_begun_request: AtomicBool::new(false),
            current_tick: now.clone(),
            open_requests: AtomicU32::new(0),
            head_has_begun: AtomicBool::new(true),
            write_blocked: AtomicU32::new(0),
            untaken_responses: AtomicU32::new(0),
            last_taken: AtomicU32::new(0),
            is_http2: AtomicBool::new(false),
            last_http2_read: AtomicU32::new(0),
            protocol_known: AtomicBool::new(false),
            http_has_ended: AtomicBool::new(false),
            answering: AtomicBool::new(false),
            request_is_complete: AtomicBool::new(false),
            read_paused: AtomicU32::new(0),
            end_flags: AtomicU8::new(0),
            is_service: AtomicBool::new(false),
            unread_input: UnreadInput::default(),
            waker: OnceLock::new(),
        })
    }

    /// Returns the current tick.
    pub(crate) fn current_tick(&self) -> u32 {
        self.current_tick.load(Ordering::Relaxed)
    }

    /// Sets the protocol. With HTTP/2, bytes between requests are not the beginning of a request
    /// head.
    pub(crate) fn set_protocol(&self, http2: bool) {
        self.protocol_known.store(true, Ordering::Relaxed);
        self.is_http2.store(http2, Ordering::Relaxed);
        if http2 {
            self.note_idle();
        }
    }

    /// Returns whether the protocol is known.
    pub(crate) fn is_protocol_known(&self) -> bool {
        self.protocol_known.load(Ordering::Relaxed)
    }

    /// Notes a complete handshake: the first request is due from now on.
    pub(crate) fn expect_request(&self) {
        self.first_request_due
            .store(self.current_tick.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Notes received bytes of a TCP connection.
    pub(crate) fn note_read(&self) {
        if self.is_http2.load(Ordering::Relaxed) {
            return self.touch_last_http2_read();
        }
        // Only the first bytes of a head start its timeout. Later ones must not extend it, or a
        // slow head never ends.
        let is_between_requests = self.open_requests.load(Ordering::Relaxed) == 0
            && !self.head_has_begun.load(Ordering::Relaxed);
        if is_between_requests {
            self.head_has_begun.store(true, Ordering::Relaxed);
            self.touch_changed_at();
        }
    }

    /// Notes a write that succeeded or was blocked.
    pub(crate) fn note_write(&self, has_room: bool) {
        if has_room {
            self.write_blocked.store(0, Ordering::Relaxed);
        } else if self.write_blocked.load(Ordering::Relaxed) == 0 {
            self.write_blocked.store(
                self.current_tick.load(Ordering::Relaxed) + 1,
                Ordering::Relaxed,
            );
        }
    }

    /// Begins a request; `request_is_complete` if it has no body. The request lasts as long as
    /// the returned value.
    pub(crate) fn begin_request(self: &Arc<Self>, request_is_complete: bool) -> ActiveRequest {
        self.open_requests.store(
            self.open_requests.load(Ordering::Relaxed) + 1,
            Ordering::Relaxed,
        );
        self.has_begun_request.store(true, Ordering::Relaxed);
        self.answering.store(true, Ordering::Relaxed);
        self.request_is_complete
            .store(request_is_complete, Ordering::Relaxed);
        if self.has_end_flag(DRAIN_AFTER_FIRST_FLAG) {
            self.drain_connection();
        }
        ActiveRequest {
            state: self.clone(),
            is_untaken: false,
        }
    }

    /// Notes that everything is written.
    pub(crate) fn note_flushed(&self) {
        if self.open_requests.load(Ordering::Relaxed) == 0 {
            self.answering.store(false, Ordering::Relaxed);
        }
    }

    /// Returns whether bytes written now belong to a response.
    pub(crate) fn is_answering(&self) -> bool {
        self.answering.load(Ordering::Relaxed)
    }

    /// Returns whether reading can pause because the caller waits for its response, and only for
    /// a short time yet. After a pause, the sweep wakes the connection until
    /// [`ConnState::resume_reading`].
    pub(crate) fn is_read_paused(&self) -> bool {
        let request_is_complete = self.request_is_complete.load(Ordering::Relaxed)
            && !self.is_http2.load(Ordering::Relaxed);
        // HTTP/2 carries window updates and resets during a response, so its connections always
        // read.
        if !request_is_complete
            || self.open_requests.load(Ordering::Relaxed) == 0
            || self.has_http_ended()
        {
            return false;
        }
        if self.read_paused.load(Ordering::Relaxed) == 0 {
            self.read_paused.store(
                self.current_tick.load(Ordering::Relaxed) + 1,
                Ordering::Relaxed,
            );
        }
        !self.is_resume_due(self.current_tick.load(Ordering::Relaxed))
    }

    /// Returns whether reading was paused for too long.
    fn is_resume_due(&self, now: u32) -> bool {
        let since = self.read_paused.load(Ordering::Relaxed);
        // Two ticks: after one, the pause may be only a moment old.
        since != 0 && now.wrapping_sub(since - 1) >= 2
    }

    /// Notes that the connection reads again.
    pub(crate) fn resume_reading(&self) {
        self.read_paused.store(0, Ordering::Relaxed);
    }

    /// Notes that no request is open. A connection that paused reading must resume, because
    /// nothing else would wake it for the next request.
    fn note_idle(&self) {
        self.head_has_begun.store(false, Ordering::Relaxed);
        self.touch_changed_at();
        if self.read_paused.load(Ordering::Relaxed) != 0 {
            self.wake_task();
        }
    }

    fn touch_changed_at(&self) {
        self.changed_at
            .store(self.current_tick.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn touch_last_http2_read(&self) {
        let now = self.current_tick.load(Ordering::Relaxed);
        self.last_http2_read.store(now + 1, Ordering::Relaxed);
    }

    /// Gives an HTTP/2 client the whole time again to answer GOAWAY.
    fn restart_goaway_grace(&self) {
        if self.last_http2_read.load(Ordering::Relaxed) != 0 {
            self.touch_last_http2_read();
        }
    }

    fn take_snapshot(&self) -> ConnSnapshot {
        let last_http2_read = self.last_http2_read.load(Ordering::Relaxed);
        ConnSnapshot {
            goaway_since: last_http2_read
                .checked_sub(1)
                .filter(|_| self.is_draining()),
            open_requests: self.open_requests.load(Ordering::Relaxed),
            head_has_begun: self.head_has_begun.load(Ordering::Relaxed),
            changed_at: self.changed_at.load(Ordering::Relaxed),
            write_blocked_since: self.write_blocked.load(Ordering::Relaxed).checked_sub(1),
            untaken_since: (self.untaken_responses.load(Ordering::Relaxed) > 0)
                .then(|| self.last_taken.load(Ordering::Relaxed)),
        }
    }

    /// Returns whether a draining connection may still send its first request or complete its
    /// handshake.
    fn may_begin_request(&self, now: u32, cause: DrainCause) -> bool {
        if self.has_begun_request.load(Ordering::Relaxed) {
            return false;
        }
        // Over HTTP/2 a GOAWAY tells the client to leave, and loses nothing.
        let has_goaway = self.is_http2.load(Ordering::Relaxed);
        // A successor serves the port, so the old process can wait for `header_timeout`.
        (cause == DrainCause::Replaced && !has_goaway)
            || now.wrapping_sub(self.first_request_due.load(Ordering::Relaxed))
                < FIRST_REQUEST_GRACE_TICKS
    }

    /// Cuts the connection at once.
    pub(crate) fn cut_connection(&self) {
        self.set_end_flag(CUT_FLAG);
    }

    /// Ends the connection after its open requests.
    pub(crate) fn drain_connection(&self) {
        self.restart_goaway_grace();
        self.set_end_flag(DRAIN_FLAG);
    }

    /// Ends the connection at once or after its open requests, or leaves it its first request.
    fn drain_because(&self, cause: DrainCause, now: u32) {
        if self.may_begin_request(now, cause) {
            // Set here and not at the next sweep, so that the first response announces the end.
            self.end_flags
                .fetch_or(DRAIN_AFTER_FIRST_FLAG, Ordering::Relaxed);
        } else {
            self.drain_connection();
        }
    }

    /// Sets whether the connection serves the state of this node to another one.
    pub(super) fn set_service(&self, is_service: bool) {
        self.is_service.store(is_service, Ordering::Relaxed);
    }

    /// Returns whether the connection serves the state of this node to another one. It is not drained:
    /// without answers to its pings, the other node would take this one for dead, and cut open calls.
    pub(super) fn is_service(&self) -> bool {
        self.is_service.load(Ordering::Relaxed)
    }

    fn has_end_flag(&self, flag: u8) -> bool {
        self.end_flags.load(Ordering::Relaxed) & flag != 0
    }

    fn set_end_flag(&self, flag: u8) {
        // Flags only accumulate: a cut after a drain stays a cut.
        self.end_flags.fetch_or(flag, Ordering::Relaxed);
        self.wake_task();
    }

    fn wake_task(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    /// Returns whether the connection ends after its open requests.
    pub(crate) fn is_draining(&self) -> bool {
        self.has_end_flag(DRAIN_FLAG)
    }

    /// Waits for the drain. To be awaited in the task that [`ConnState::run_until_cut`] runs.
    pub(crate) async fn wait_for_drain(&self) {
        // No waker is kept: every end flag wakes the whole task of the connection.
        poll_fn(|_| {
            if self.is_draining() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Marks the end of HTTP on the connection.
    pub(crate) fn mark_http_ended(&self) {
        self.http_has_ended.store(true, Ordering::Relaxed);
    }

    /// Notes that all responses are written and the connection only waits for its client to close.
    /// [`nearpath_wire::lingering_close`] bounds that, and the idle timeout if it is shorter.
    pub(crate) fn mark_lingering(&self) {
        self.note_idle();
    }

    /// Returns whether HTTP has ended: the connection was upgraded or dropped.
    pub(crate) fn has_http_ended(&self) -> bool {
        self.http_has_ended.load(Ordering::Relaxed)
    }

    /// Runs the connection until it ends or is cut; `None`: it was cut. A connection without a
    /// known protocol ends with the drain. Must be the whole of its task, because its waker is
    /// stored once. Pinned by the caller: an `async fn` holds a future that it takes twice.
    pub(crate) async fn run_until_cut<E>(
        &self,
        mut connection: Pin<&mut impl Future<Output = Result<(), E>>>,
    ) -> Option<Result<(), E>> {
        poll_fn(|cx| {
            self.waker.get_or_init(|| cx.waker().clone());
            if self.has_end_flag(CUT_FLAG) {
                Poll::Ready(None)
            } else if self.is_draining() && !self.is_protocol_known() {
                // Without a protocol there is no request to finish and no way to announce the
                // end.
                Poll::Ready(Some(Ok(())))
            } else {
                connection.as_mut().poll(cx).map(Some)
            }
        })
        .await
    }
}

/// An open request of a connection, from its complete head to its complete response.
#[derive(Debug)]
pub(crate) struct ActiveRequest {
    state: Arc<ConnState>,
    is_untaken: bool,
}

impl ActiveRequest {
    /// Marks data that waits for the caller. A later call means that the caller has read the data
    /// before.
    pub(crate) fn mark_untaken(&mut self) {
        self.state.last_taken.store(
            self.state.current_tick.load(Ordering::Relaxed),
            Ordering::Relaxed,
        );
        self.set_untaken(true);
    }

    /// Notes that the caller has read all available data.
    pub(crate) fn mark_taken(&mut self) {
        self.set_untaken(false);
    }

    fn set_untaken(&mut self, is_untaken: bool) {
        let before = self.state.untaken_responses.load(Ordering::Relaxed);
        let after = before + u32::from(is_untaken) - u32::from(self.is_untaken);
        self.state.untaken_responses.store(after, Ordering::Relaxed);
        self.is_untaken = is_untaken;
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.mark_taken();
        self.state.open_requests.store(
            self.state.open_requests.load(Ordering::Relaxed) - 1,
            Ordering::Relaxed,
        );
        // The last part of the response may wait in the HTTP/2 connection.
        self.state.restart_goaway_grace();
        self.state.note_idle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_resumes_after_two_ticks_of_waiting() {
        let now = Arc::new(AtomicU32::new(7));
        let state = ConnState::new(&now);
        assert!(!state.is_read_paused(), "its first request is due");
        let active = state.begin_request(false);
        assert!(!state.is_read_paused(), "the request's body is due");
        drop(active);
        let active = state.begin_request(true);
        assert!(state.is_read_paused() && !state.is_resume_due(8));
        now.store(9, Ordering::Relaxed);
        assert!(state.is_resume_due(9) && !state.is_read_paused());
        state.resume_reading();
        assert!(!state.is_resume_due(100));
        drop(active);
        assert!(
            !state.is_read_paused(),
            "the caller may send the next request"
        );
    }

    struct CountingWaker(AtomicU32);

    impl std::task::Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_end_of_a_request_wakes_a_connection_that_paused_reading() {
        let (state, waker) = (
            ConnState::new(&Arc::default()),
            Arc::new(CountingWaker(AtomicU32::new(0))),
        );
        state.waker.set(Waker::from(waker.clone())).unwrap();
        drop(state.begin_request(true));
        assert_eq!(
            waker.0.load(Ordering::Relaxed),
            0,
            "it never paused reading"
        );
        let active = state.begin_request(true);
        assert!(state.is_read_paused());
        drop(active);
        assert_eq!(waker.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_drain_waits_a_second_for_a_first_request_and_no_longer() {
        let (now, table) = (Arc::default(), ConnTable::default());
        let (silent, asking) = (ConnState::new(&now), ConnState::new(&now));
        [&silent, &asking]
            .into_iter()
            .for_each(|state| table.add_connection(state.clone()));
        let timeouts = ConnTimeouts {
            head_ticks: 100,
            idle_ticks: 100,
            write_ticks: 100,
        };
        table.drain_all(0, DrainCause::Stop);
        assert!(!silent.is_draining() && !asking.is_draining());
        let _active = asking.begin_request(true);
        assert!(!silent.is_draining() && asking.is_draining());
        table.cut_overdue(FIRST_REQUEST_GRACE_TICKS, &timeouts);
        assert!(silent.is_draining());
    }

    #[test]
    fn a_replaced_process_waits_for_every_first_request_but_those_that_a_goaway_tells() {
        let (now, table) = (Arc::default(), ConnTable::default());
        let [silent, asking, http2] = [(); 3].map(|()| ConnState::new(&now));
        http2.set_protocol(true);
        for state in [&silent, &asking, &http2] {
            table.add_connection(state.clone());
        }
        let timeouts = ConnTimeouts {
            head_ticks: 40,
            idle_ticks: 100,
            write_ticks: 100,
        };
        table.drain_all(39, DrainCause::Replaced);
        assert!(!silent.is_draining() && !asking.is_draining() && http2.is_draining());
        let _active = asking.begin_request(true);
        assert_eq!(table.cut_overdue(40, &timeouts), 0);
        assert!(!silent.is_draining() && asking.is_draining());
        assert_eq!(
            table.cut_overdue(41, &timeouts),
            1,
            "header_timeout is over"
        );
    }

    #[test]
    fn a_connection_that_serves_the_state_of_this_node_is_not_drained() {
        let (now, table) = (Arc::default(), ConnTable::default());
        let [call, service] = [(); 2].map(|()| ConnState::new(&now));
        service.set_service(true);
        for state in [&call, &service] {
            drop(state.begin_request(true));
            table.add_connection(state.clone());
        }
        table.drain_all(0, DrainCause::Stop);
        assert!(call.is_draining() && !service.is_draining());
        // Its next request is a call: the sweep drains it, too.
        service.set_service(false);
        let timeouts = ConnTimeouts {
            head_ticks: 100,
            idle_ticks: 100,
            write_ticks: 100,
        };
        table.cut_overdue(1, &timeouts);
        assert!(service.is_draining());
    }

    #[test]
    fn the_end_of_a_request_restarts_the_time_to_answer_goaway() {
        let now = Arc::new(AtomicU32::new(3));
        let states = [(); 2].map(|()| ConnState::new(&now));
        states.iter().for_each(|state| state.set_protocol(true));
        states[0].note_read(); // not counted over HTTP/3
        let open = states.each_ref().map(|state| state.begin_request(true));
        states.iter().for_each(|state| state.drain_connection());
        now.store(90, Ordering::Relaxed);
        drop(open);
        let goaway = states
            .each_ref()
            .map(|state| state.take_snapshot().goaway_since);
        assert_eq!(goaway, [Some(90), None]);
    }

    #[test]
    fn a_request_ends_the_head_timeout_and_starts_the_idle_timeout() {
        let now = Arc::new(AtomicU32::new(0));
        let state = ConnState::new(&now);
        assert!(
            state.take_snapshot().head_has_begun,
            "the first request of a new connection is due"
        );
        let active = state.begin_request(true);
        drop(active);
        assert_eq!(
            (
                state.take_snapshot().open_requests,
                state.take_snapshot().head_has_begun
            ),
            (0, false)
        );
        now.store(9, Ordering::Relaxed);
        state.note_read();
        assert_eq!(
            (
                state.take_snapshot().head_has_begun,
                state.take_snapshot().changed_at
            ),
            (true, 9)
        );
        now.store(12, Ordering::Relaxed);
        state.note_read();
        assert_eq!(
            state.take_snapshot().changed_at,
            9,
            "later bytes of the same head give no more time"
        );
    }

    #[test]
    fn a_blocked_write_counts_from_the_first_failure() {
        let now = Arc::new(AtomicU32::new(3));
        let state = ConnState::new(&now);
        state.note_write(false);
        now.store(8, Ordering::Relaxed);
        state.note_write(false);
        assert_eq!(state.take_snapshot().write_blocked_since, Some(3));
        state.note_write(true);
        assert_eq!(state.take_snapshot().write_blocked_since, None);
    }

    #[test]
    fn untaken_responses_count_from_the_last_frame_of_any() {
        let now = Arc::new(AtomicU32::new(3));
        let state = ConnState::new(&now);
        let (mut one, mut other) = (state.begin_request(true), state.begin_request(true));
        assert_eq!(state.take_snapshot().untaken_since, None);
        one.mark_untaken();
        now.store(5, Ordering::Relaxed);
        other.mark_untaken();
        other.mark_untaken();
        assert_eq!(state.take_snapshot().untaken_since, Some(5));
        other.mark_taken();
        assert_eq!(
            state.take_snapshot().untaken_since,
            Some(5),
            "the first is still there"
        );
        drop(one);
        assert_eq!(state.take_snapshot().untaken_since, None);
    }
}
