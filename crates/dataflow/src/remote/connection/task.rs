//! What the line's thread does.

use std::sync::Arc;
use std::time::Instant;

use nearpath_p2p::control::{Heard, Meeting};
use nearpath_p2p::message::Report;
use nearpath_types::SpiffeId;
use tokio::sync::mpsc::Receiver;

use super::FAREWELL;
use super::shared::{Presence, Shared};
use crate::remote::control_message::Part;
use crate::remote::outbox::Turn;
use crate::remote::{call_queue, worker_name};

/// Until the line is over, or closed.
pub(super) async fn talk(shared: Arc<Shared>, mut heard: Receiver<Heard>) {
    tokio::select! {
        () = listen(&shared, &mut heard) => return,
        never = speak(&shared) => match never {},
        () = shared.closing.notified() => (),
    }
    let farewell = async {
        say_all(&shared).await;
        shared.hang_up();
        listen(&shared, &mut heard).await;
    };
    let _ = tokio::time::timeout(FAREWELL, farewell).await;
    shared.hang_up();
    shared.set(Presence::Over("the line to the rendezvous is closed".to_owned()));
}

async fn listen(shared: &Shared, heard: &mut Receiver<Heard>) {
    while let Some(heard) = heard.recv().await {
        match heard {
            Heard::Here(welcome) => shared.set(Presence::Here { loopback: welcome.seen.ip().is_loopback() }),
            Heard::Away { why } => shared.set(Presence::Away(why)),
            Heard::Over(over) => shared.set(Presence::Over(over.to_string())),
            Heard::Called(meeting) => called(shared, meeting),
            Heard::Report { from, report } => reported(shared, &from, report),
            Heard::Undelivered { .. } => (), // it is said again
        }
    }
    if !shared.is_over() {
        shared.set(Presence::Over("the line to the rendezvous is closed".to_owned()));
    }
}

/// Who is called by somebody that is no worker of this job, or about something else, does not answer.
fn called(shared: &Shared, meeting: Meeting) {
    let from = worker_name::of(&shared.job, &meeting.granted.peer);
    let attempt = call_queue::attempt(&meeting.granted.about);
    match from.zip(attempt) {
        Some((from, attempt)) => shared.rang(from, attempt, meeting),
        None => tracing::debug!(peer = %meeting.granted.peer, about = meeting.granted.about, "not answered"),
    }
}

fn reported(shared: &Shared, from: &SpiffeId, report: Report) {
    if let (Some(from), Some(part)) = (worker_name::of(&shared.job, from), Part::read(report)) {
        shared.heard(&from, part);
    }
}

async fn speak(shared: &Shared) -> std::convert::Infallible {
    loop {
        match shared.next(Instant::now()) {
            Turn::Say(to, report) => say(shared, to, report),
            Turn::Nothing => shared.speak.notified().await,
            Turn::Later(at) => tokio::time::sleep_until(at.into()).await,
        }
    }
}

/// The last words are not held back by their pace: the line ends with them.
async fn say_all(shared: &Shared) {
    while !shared.has_said_all() {
        match shared.next(Instant::now()) {
            Turn::Say(to, report) => say(shared, to, report),
            Turn::Later(at) => tokio::time::sleep_until(at.into()).await,
            Turn::Nothing => return,
        }
    }
}

fn say(shared: &Shared, to: Option<SpiffeId>, report: Report) {
    if let Ok(line) = shared.line() {
        line.report(to, report);
    }
}
