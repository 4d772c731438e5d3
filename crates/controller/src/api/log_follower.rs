//! Logs that go on, of all nodes. A node that goes down has a line that says so, and is followed
//! again when it returns.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::{Stream, StreamExt, stream};
use nearpath_types::{FunctionId, LogLine, MissingNode, NodeLogLine, NodeName};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

use crate::merge::{LogMerger, MergeStep, label_line, missing_line};
use crate::peers::PeerNodes;

/// Lines that wait for the reader, of all nodes.
const MAX_WAITING_EVENTS: usize = 64;
/// Pause before a node is followed again. A node that stops ends its logs before it is down.
const REFOLLOW_DELAY: Duration = Duration::from_secs(2);
/// Index of this node among the sources.
const OWN_SOURCE: usize = 0;

/// Event of one node's log.
enum SourceEvent {
    Open,
    Line(Box<NodeLogLine>),
    /// Lines are missing from here on.
    Gone(Box<NodeLogLine>),
    /// This node has removed the function.
    Ended,
}

/// Another node's log of a function.
#[derive(Clone)]
pub(crate) struct PeerLog {
    pub(crate) node: NodeName,
    /// Path of the query.
    pub(crate) path: String,
    pub(crate) function: FunctionId,
    pub(crate) peers: Arc<dyn PeerNodes>,
}

/// Follows the log of this node and those of others, until the function is removed here.
pub(crate) fn follow_logs(
    own: Option<NodeName>,
    own_lines: mpsc::Receiver<LogLine>,
    peers: Vec<PeerLog>,
) -> impl Stream<Item = NodeLogLine> + Send {
    let (sender, events) = mpsc::channel(MAX_WAITING_EVENTS);
    let merger = LogMerger::new(peers.len() + 1);
    let mut tasks = JoinSet::new();
    tasks.spawn(forward_own(own, own_lines, sender.clone()));
    for (at, log) in peers.into_iter().enumerate() {
        tasks.spawn(log.follow(OWN_SOURCE + 1 + at, sender.clone()));
    }
    let follower = LogFollower {
        merger,
        events,
        is_ended: false,
        _tasks: tasks,
    };
    stream::unfold(follower, |mut follower| async {
        let line = follower.next_line().await?;
        Some((line, follower))
    })
}

type EventSender = mpsc::Sender<(usize, SourceEvent)>;

struct LogFollower {
    merger: LogMerger,
    events: mpsc::Receiver<(usize, SourceEvent)>,
    is_ended: bool,
    /// Aborted with the reader.
    _tasks: JoinSet<()>,
}

impl LogFollower {
    async fn next_line(&mut self) -> Option<NodeLogLine> {
        loop {
            let until = match self.merger.next_step(Instant::now()) {
                MergeStep::Line(line) => return Some(*line),
                MergeStep::Wait if self.is_ended => return None,
                MergeStep::Wait => None,
                MergeStep::WaitUntil(until) => Some(until),
            };
            tokio::select! {
                event = self.events.recv() => match event {
                    Some((source, event)) => self.handle(source, event),
                    None => self.is_ended = true,
                },
                () = sleep_until(until.unwrap_or_else(Instant::now).into()), if until.is_some() => {}
            }
        }
    }

    fn handle(&mut self, source: usize, event: SourceEvent) {
        match event {
            SourceEvent::Open => self.merger.note_open(source),
            SourceEvent::Line(line) => self.merger.push(source, *line, Instant::now()),
            SourceEvent::Gone(line) => {
                self.merger.note_gone(source);
                self.merger.push(source, *line, Instant::now());
            }
            SourceEvent::Ended => {
                self.merger.note_gone(source);
                self.is_ended = true;
            }
        }
    }
}

/// Forwards the lines of this node. An error of the sender means that the reader has left.
async fn forward_own(
    own: Option<NodeName>,
    mut lines: mpsc::Receiver<LogLine>,
    events: EventSender,
) {
    let _ = events.send((OWN_SOURCE, SourceEvent::Open)).await;
    while let Some(line) = lines.recv().await {
        let line = label_line(own.as_ref(), line).into();
        if events
            .send((OWN_SOURCE, SourceEvent::Line(line)))
            .await
            .is_err()
        {
            return;
        }
    }
    let _ = events.send((OWN_SOURCE, SourceEvent::Ended)).await;
}

impl PeerLog {
    async fn follow(self, source: usize, events: EventSender) {
        let mut last = None;
        loop {
            let Err(cause) = self.follow_once(source, &events, &mut last).await;
            let missing = MissingNode::new(self.node.as_str(), cause);
            let line = missing_line(&self.function, &missing, SystemTime::now());
            let gone = SourceEvent::Gone(line.into());
            if events.send((source, gone)).await.is_err() {
                return;
            }
            sleep(REFOLLOW_DELAY).await;
            self.peers.wait_up(&self.node).await;
        }
    }

    /// Forwards lines that are newer than `last` until the stream ends, and returns the cause.
    async fn follow_once(
        &self,
        source: usize,
        events: &EventSender,
        last: &mut Option<SystemTime>,
    ) -> Result<std::convert::Infallible, String> {
        let mut lines = self.peers.stream(&self.node, self.path.clone()).await?;
        let _ = events.send((source, SourceEvent::Open)).await;
        let newer_than = *last;
        while let Some(line) = lines.next().await {
            // A line that a later release has changed is left out.
            let Ok(line) = serde_json::from_slice::<LogLine>(&line?) else {
                continue;
            };
            if newer_than.is_some_and(|last| line.timestamp <= last) {
                continue;
            }
            *last = Some(line.timestamp);
            let line = label_line(Some(&self.node), line).into();
            if events
                .send((source, SourceEvent::Line(line)))
                .await
                .is_err()
            {
                return Err("the reader has left".to_owned());
            }
        }
        Err("its log ended".to_owned())
    }
}
