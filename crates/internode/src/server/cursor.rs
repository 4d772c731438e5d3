//! Position of one subscriber in this node's state. Pure.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nearpath_types::{FunctionId, FunctionLoad, FunctionMap};

use crate::local_state::LocalState;
use crate::protocol::{MAX_LINE_FUNCTIONS, StateChange, StateFrame, StatePart};

/// Minimum time between two changes that are numbers of requests alone.
const LOAD_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time between two lines.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// State that a subscriber has, from which its next line follows.
///
/// Nothing is queued: a slow subscriber gets the difference to the newest state when it reads
/// again.
#[derive(Debug)]
pub(super) struct StateCursor {
    stage: CursorStage,
    /// Functions that were sent.
    sent: FunctionMap<FunctionLoad>,
    sent_draining: bool,
    sent_replaced: bool,
    sent_readiness: u64,
    last_number: u64,
    last_line: Instant,
    last_change: Instant,
}

#[derive(Debug)]
enum CursorStage {
    Hello,
    /// The whole state is sent as it was at the beginning.
    Whole(Arc<LocalState>),
    Changes,
}

/// Next action for a subscriber.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CursorStep {
    /// Send this line.
    Send(Bytes),
    /// Wait for a newer state, until this time at most.
    Wait(Instant),
}

/// Functions of one line.
#[derive(Default)]
struct LineChanges {
    set: BTreeMap<FunctionId, FunctionLoad>,
    removed: Vec<FunctionId>,
    /// No other differences remain.
    is_last: bool,
}

impl StateCursor {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            stage: CursorStage::Hello,
            sent: FunctionMap::default(),
            sent_draining: false,
            sent_replaced: false,
            sent_readiness: 0,
            last_number: 0,
            last_line: now,
            last_change: now,
        }
    }

    /// Returns the next line for the subscriber, or how long it may wait for a newer state.
    pub(super) fn advance(&mut self, state: &Arc<LocalState>, now: Instant) -> CursorStep {
        match self.next_frame(state, now) {
            Some(frame) => {
                self.last_line = now;
                CursorStep::Send(frame.to_line())
            }
            None => CursorStep::Wait(self.next_due(state)),
        }
    }

    fn next_frame(&mut self, state: &Arc<LocalState>, now: Instant) -> Option<StateFrame> {
        match mem::replace(&mut self.stage, CursorStage::Changes) {
            CursorStage::Hello => {
                self.stage = CursorStage::Whole(state.clone());
                Some(StateFrame::Hello(state.hello()))
            }
            CursorStage::Whole(whole) => Some(self.next_part(whole)),
            CursorStage::Changes => self.next_change(state, now),
        }
    }

    fn next_part(&mut self, whole: Arc<LocalState>) -> StateFrame {
        // In front of the functions, so that they are never used while the node drains.
        if let Some(frame) = self.draining_frame(&whole) {
            self.stage = CursorStage::Whole(whole);
            return frame;
        }
        let LineChanges { set, is_last, .. } = self.take_changes(whole.functions());
        match is_last {
            true => self.sent_readiness = whole.readiness_version(),
            false => self.stage = CursorStage::Whole(whole),
        }
        StateFrame::State(StatePart {
            set,
            complete: is_last,
        })
    }

    fn next_change(&mut self, state: &LocalState, now: Instant) -> Option<StateFrame> {
        let is_beat_due = now >= self.last_line + HEARTBEAT_INTERVAL;
        let may_send = self.has_other_readiness(state) || now >= self.last_change + LOAD_INTERVAL;
        if !may_send {
            return None;
        }
        if let Some(frame) = self.draining_frame(state) {
            return Some(frame);
        }
        if state.is_replaced() && !mem::replace(&mut self.sent_replaced, true) {
            return Some(StateFrame::Replaced);
        }
        let changes = self.take_changes(state.functions());
        if changes.is_last {
            self.sent_readiness = state.readiness_version();
        }
        if changes.set.is_empty() && changes.removed.is_empty() {
            return is_beat_due.then_some(StateFrame::Heartbeat);
        }
        self.last_change = now;
        self.last_number += 1;
        Some(StateFrame::Change(StateChange {
            number: self.last_number,
            set: changes.set,
            removed: changes.removed,
        }))
    }

    fn draining_frame(&mut self, state: &LocalState) -> Option<StateFrame> {
        let is_draining = state.is_draining();
        let was_draining = mem::replace(&mut self.sent_draining, is_draining);
        (is_draining != was_draining).then_some(StateFrame::Draining(is_draining))
    }

    fn has_other_readiness(&self, state: &LocalState) -> bool {
        // A subscription may begin after the process was replaced.
        let is_news = state.is_replaced() && !self.sent_replaced;
        is_news || state.readiness_version() != self.sent_readiness
    }

    /// Returns when a line is due if no other state follows.
    fn next_due(&self, state: &LocalState) -> Instant {
        let beat = self.last_line + HEARTBEAT_INTERVAL;
        // Both are pointers when nothing has changed, so the comparison ends at once.
        match state.functions().changes_since(&self.sent).next().is_some() {
            true => beat.min(self.last_change + LOAD_INTERVAL),
            false => beat,
        }
    }

    /// Takes the differences between what was sent and `target` that fit a line, as sent.
    fn take_changes(&mut self, target: &FunctionMap<FunctionLoad>) -> LineChanges {
        let sent = self.sent.clone();
        let mut differences = target.changes_since(&sent);
        let mut changes = LineChanges::default();
        for change in differences.by_ref().take(MAX_LINE_FUNCTIONS) {
            match change.after {
                Some(load) => {
                    self.sent.insert(change.id.clone(), load.clone());
                    changes.set.insert(change.id.clone(), **load);
                }
                None => {
                    self.sent.remove(change.id);
                    changes.removed.push(change.id.clone());
                }
            }
        }
        changes.is_last = differences.next().is_none();
        if changes.is_last {
            // The same content, but shared: the next comparison takes time for what changes alone.
            self.sent = target.clone();
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local_state::NodeFacts;
    use crate::peer_view::PeerView;
    use crate::protocol::NodeIncarnation;
    use proptest::prelude::*;

    fn empty_state() -> LocalState {
        LocalState::new(NodeFacts {
            name: "a".parse().unwrap(),
            incarnation: NodeIncarnation(1),
            version: "0.1.0".to_owned(),
            started: 1,
        })
    }

    fn with(state: &LocalState, number: u32, load: Option<(u32, u32)>) -> LocalState {
        let id: FunctionId = format!("f{number}").parse().unwrap();
        let mut functions = state.functions().clone();
        match load {
            Some((ready, requests)) => drop(functions.insert(id, FunctionLoad { ready, requests })),
            None => drop(functions.remove(&id)),
        }
        state.with_functions(functions)
    }

    /// A subscriber that reads all lines that there are.
    struct Reader {
        cursor: StateCursor,
        view: PeerView,
        lines: Vec<StateFrame>,
    }

    impl Reader {
        fn new(now: Instant) -> Self {
            Self {
                cursor: StateCursor::new(now),
                view: PeerView::new("a".parse().unwrap()),
                lines: Vec::new(),
            }
        }

        fn read_all(&mut self, state: &LocalState, now: Instant) -> Instant {
            loop {
                match self.cursor.advance(&Arc::new(state.clone()), now) {
                    CursorStep::Wait(until) => return until,
                    CursorStep::Send(line) => {
                        let frame = StateFrame::parse(&line[..line.len() - 1]).unwrap();
                        self.view.apply(frame.clone()).unwrap();
                        self.lines.push(frame);
                    }
                }
            }
        }
    }

    #[test]
    fn the_whole_state_comes_in_lines_of_a_thousand_functions() {
        let functions = (0..2_500).map(|number| {
            let id: FunctionId = format!("f{number}").parse().unwrap();
            (id, FunctionLoad::default())
        });
        let now = Instant::now();
        let state = empty_state()
            .with_functions(functions.collect())
            .with_draining(true);
        let mut reader = Reader::new(now);
        reader.read_all(&state, now);
        let sizes = reader.lines.iter().filter_map(|line| match line {
            StateFrame::State(part) => Some((part.set.len(), part.complete)),
            _ => None,
        });
        let expected = [(1_000, false), (1_000, false), (500, true)];
        assert_eq!(sizes.collect::<Vec<_>>(), expected);
        assert_eq!(reader.view.functions(), *state.functions());
        assert!(reader.view.is_draining());
    }

    #[test]
    fn loads_wait_and_readiness_does_not() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut reader = Reader::new(start);
        let state = with(&empty_state(), 1, Some((1, 0)));
        reader.read_all(&state, at(0));
        let busy = with(&state, 1, Some((1, 5)));
        assert_eq!(
            reader.read_all(&busy, at(10)),
            at(100),
            "loads are sent later"
        );
        let lines = reader.lines.len();
        reader.read_all(&busy, at(100));
        assert_eq!(reader.lines.len(), lines + 1);
        let ready = with(&busy, 2, Some((1, 0)));
        reader.read_all(&ready, at(110));
        assert_eq!(
            reader.view.functions(),
            *ready.functions(),
            "readiness at once"
        );
        reader.read_all(&ready.with_draining(true), at(111));
        assert!(reader.view.is_draining(), "draining at once");
    }

    #[test]
    fn a_process_that_was_replaced_says_so_once() {
        let now = Instant::now();
        let state = with(&empty_state(), 1, Some((1, 0)));
        let (mut early, mut late) = (Reader::new(now), Reader::new(now));
        early.read_all(&state, now);
        let replaced = state.with_replaced();
        early.read_all(&replaced, now);
        late.read_all(&replaced, now);
        let is_news = |line: &&StateFrame| **line == StateFrame::Replaced;
        for mut reader in [early, late] {
            reader.read_all(&replaced.with_draining(true), now);
            assert_eq!(reader.lines.iter().filter(is_news).count(), 1);
            assert!(reader.view.is_draining(), "older releases read on");
        }
    }

    #[test]
    fn a_heartbeat_comes_each_second() {
        let start = Instant::now();
        let mut reader = Reader::new(start);
        let state = empty_state();
        let second = Duration::from_secs(1);
        assert_eq!(reader.read_all(&state, start), start + second);
        assert_eq!(reader.read_all(&state, start + second), start + second * 2);
        assert_eq!(reader.lines.last(), Some(&StateFrame::Heartbeat));
    }

    proptest! {
        /// Whatever a subscriber misses, it ends with the newest state.
        #[test]
        fn a_reader_that_misses_versions_ends_with_the_newest(
            steps in prop::collection::vec(
                (0u32..20, prop::option::weighted(0.8, (0u32..3, 0u32..3)), any::<bool>(), 0u64..150),
                0..60,
            ),
        ) {
            let mut now = Instant::now();
            let mut reader = Reader::new(now);
            let mut state = empty_state();
            for (number, load, reads, wait) in steps {
                state = with(&state, number, load).with_draining(number % 7 == 0);
                now += Duration::from_millis(wait);
                if reads {
                    reader.read_all(&state, now);
                }
            }
            reader.read_all(&state, now);
            let due = reader.read_all(&state, now);
            reader.read_all(&state, due);
            prop_assert_eq!(reader.view.functions(), state.functions().clone());
            prop_assert_eq!(reader.view.is_draining(), state.is_draining());
        }
    }
}
