//! State of another node, as its frames report it. Pure.

use std::collections::BTreeMap;
use std::mem;

use nearpath_types::{FunctionId, FunctionLoad, FunctionMap, NodeName};

use crate::protocol::{
    MAX_FUNCTIONS, NodeHello, NodeIncarnation, PROTOCOL, StateChange, StateFrame, StatePart,
};

/// Functions of another node. Readers never see half of a whole state.
///
/// When a subscription starts again, the last whole state stays until the new one is complete. A
/// node that was restarted has nothing of its last run, so its state is emptied at once. A process that
/// was replaced has handed its functions over, so its state stays, too.
#[derive(Debug)]
pub struct PeerView {
    node: NodeName,
    hello: Option<NodeHello>,
    reported: Option<ReportedState>,
    progress: StreamProgress,
    /// The last stream said that another process follows.
    is_replaced: bool,
}

#[derive(Debug, Clone, Default)]
struct ReportedState {
    functions: FunctionMap<FunctionLoad>,
    is_draining: bool,
}

/// Part of the stream that was applied.
#[derive(Debug)]
enum StreamProgress {
    AwaitingHello,
    Incomplete(ReportedState),
    Following { last_number: u64 },
}

/// Effect of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViewEvent {
    /// Readers see what they saw before.
    Unchanged,
    /// First or new whole state is complete.
    Completed,
    /// Readers see something else.
    Changed,
    /// Another process of the node follows. The subscription must start again.
    Replaced,
}

/// Error of frames that follow no state. The subscription must start again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ViewFault {
    /// First frame is no hello.
    #[error("the stream does not begin with a hello")]
    NoHello,
    /// Frame at a place where it has no meaning.
    #[error("unexpected {0}")]
    Unexpected(&'static str),
    /// Another version of the protocol.
    #[error("protocol {0} is not known here: expected {PROTOCOL}")]
    Protocol(u32),
    /// Name of another node.
    #[error("the node says that it is {0}")]
    OtherNode(NodeName),
    /// Change that does not follow the last one.
    #[error("change {received} does not follow change {last}")]
    Gap {
        /// Number of the change.
        received: u64,
        /// Number of the last change.
        last: u64,
    },
    /// More functions than a node may report.
    #[error("it reports more than {MAX_FUNCTIONS} functions")]
    TooManyFunctions,
}

impl PeerView {
    /// Creates the view of a node of which nothing is known.
    pub fn new(node: NodeName) -> Self {
        Self {
            node,
            hello: None,
            reported: None,
            progress: StreamProgress::AwaitingHello,
            is_replaced: false,
        }
    }

    /// Prepares for a new subscription: its first frame is a hello.
    pub fn begin_subscription(&mut self) {
        self.progress = StreamProgress::AwaitingHello;
    }

    /// Forgets the state: the node is down.
    pub fn clear(&mut self) {
        (self.reported, self.is_replaced) = (None, false);
        self.begin_subscription();
    }

    /// Applies the next frame of the subscription.
    ///
    /// # Errors
    /// When the frame does not follow those before. Readers then see what they saw before, and the
    /// next frame must be that of a new subscription.
    pub fn apply(&mut self, frame: StateFrame) -> Result<ViewEvent, ViewFault> {
        let applied = self.apply_frame(frame);
        if applied.is_err() {
            self.begin_subscription();
        }
        applied
    }

    fn apply_frame(&mut self, frame: StateFrame) -> Result<ViewEvent, ViewFault> {
        match (&self.progress, frame) {
            (StreamProgress::AwaitingHello, StateFrame::Hello(hello)) => self.greet(hello),
            (StreamProgress::AwaitingHello, _) => Err(ViewFault::NoHello),
            (_, StateFrame::Hello(_)) => Err(ViewFault::Unexpected("second hello")),
            (_, StateFrame::State(part)) => self.add_part(part),
            (_, StateFrame::Change(change)) => self.change(change),
            (_, StateFrame::Replaced) => self.set_replaced(),
            (_, StateFrame::Draining(is_draining)) => Ok(self.set_draining(is_draining)),
            (_, StateFrame::Heartbeat | StateFrame::Unknown) => Ok(ViewEvent::Unchanged),
        }
    }

    fn greet(&mut self, hello: NodeHello) -> Result<ViewEvent, ViewFault> {
        if hello.protocol != PROTOCOL {
            return Err(ViewFault::Protocol(hello.protocol));
        }
        if hello.node != self.node {
            return Err(ViewFault::OtherNode(hello.node));
        }
        let is_same_run = self.incarnation() == Some(hello.incarnation);
        let is_successor = !is_same_run && mem::take(&mut self.is_replaced);
        if !is_same_run && !is_successor {
            self.reported = None;
        }
        self.hello = Some(hello);
        self.progress = StreamProgress::Incomplete(ReportedState::default());
        Ok(if is_same_run {
            ViewEvent::Unchanged
        } else {
            ViewEvent::Changed
        })
    }

    fn add_part(&mut self, part: StatePart) -> Result<ViewEvent, ViewFault> {
        let StreamProgress::Incomplete(state) = &mut self.progress else {
            return Err(ViewFault::Unexpected("part of a state that is complete"));
        };
        set_all(&mut state.functions, part.set);
        check_count(&state.functions)?;
        if !part.complete {
            return Ok(ViewEvent::Unchanged);
        }
        let complete = mem::take(state);
        self.progress = StreamProgress::Following { last_number: 0 };
        self.adopt(complete);
        Ok(ViewEvent::Completed)
    }

    /// Makes the new whole state from the last one, so that readers which compare both find only
    /// differences.
    fn adopt(&mut self, complete: ReportedState) {
        let reported = self.reported.get_or_insert_default();
        reported.is_draining = complete.is_draining;
        let before = reported.functions.clone();
        for change in complete.functions.changes_since(&before) {
            match change.after {
                Some(load) => drop(reported.functions.insert(change.id.clone(), load.clone())),
                None => drop(reported.functions.remove(change.id)),
            }
        }
    }

    fn change(&mut self, change: StateChange) -> Result<ViewEvent, ViewFault> {
        let (StreamProgress::Following { last_number }, Some(reported)) =
            (&mut self.progress, &mut self.reported)
        else {
            return Err(ViewFault::Unexpected(
                "change of a state that is incomplete",
            ));
        };
        let (received, last) = (change.number, *last_number);
        if last.checked_add(1) != Some(received) {
            return Err(ViewFault::Gap { received, last });
        }
        // A clone costs nothing, and readers never see too many functions.
        let mut functions = reported.functions.clone();
        change
            .removed
            .iter()
            .for_each(|id| drop(functions.remove(id)));
        set_all(&mut functions, change.set);
        check_count(&functions)?;
        (*last_number, reported.functions) = (received, functions);
        Ok(ViewEvent::Changed)
    }

    fn set_replaced(&mut self) -> Result<ViewEvent, ViewFault> {
        if !matches!(self.progress, StreamProgress::Following { .. }) {
            return Err(ViewFault::Unexpected("end of a state that is incomplete"));
        }
        self.is_replaced = true;
        Ok(ViewEvent::Replaced)
    }

    fn set_draining(&mut self, is_draining: bool) -> ViewEvent {
        match (&mut self.progress, &mut self.reported) {
            (StreamProgress::Incomplete(state), _) => {
                state.is_draining = is_draining;
                ViewEvent::Unchanged
            }
            (_, Some(reported)) if reported.is_draining != is_draining => {
                reported.is_draining = is_draining;
                ViewEvent::Changed
            }
            _ => ViewEvent::Unchanged,
        }
    }

    /// Returns whether the node has reported a whole state.
    pub fn is_complete(&self) -> bool {
        self.reported.is_some()
    }

    /// Returns the functions of the last whole state with its changes; none while there is none.
    pub fn functions(&self) -> FunctionMap<FunctionLoad> {
        let reported = self.reported.as_ref();
        reported
            .map(|state| state.functions.clone())
            .unwrap_or_default()
    }

    /// Returns whether the node takes no new calls.
    pub fn is_draining(&self) -> bool {
        self.reported
            .as_ref()
            .is_some_and(|state| state.is_draining)
    }

    /// Returns the last hello, which stays when the node goes down.
    pub fn hello(&self) -> Option<&NodeHello> {
        self.hello.as_ref()
    }

    fn incarnation(&self) -> Option<NodeIncarnation> {
        self.hello.as_ref().map(|hello| hello.incarnation)
    }
}

fn set_all(functions: &mut FunctionMap<FunctionLoad>, set: BTreeMap<FunctionId, FunctionLoad>) {
    for (id, load) in set {
        functions.insert(id, load);
    }
}

fn check_count(functions: &FunctionMap<FunctionLoad>) -> Result<(), ViewFault> {
    match functions.len() > MAX_FUNCTIONS {
        true => Err(ViewFault::TooManyFunctions),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
