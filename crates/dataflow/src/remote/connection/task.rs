//! Task of the connection's thread.

use std::sync::Arc;
use std::time::Instant;

use nearpath_p2p::control::{ControlEvent, PeerSession};
use nearpath_p2p::message::JobReport;
use nearpath_types::SpiffeId;
use tokio::sync::mpsc::Receiver;

use super::CLOSE_GRACE;
use super::shared::{ConnectionShared, RendezvousStatus};
use crate::remote::control_message::MessagePart;
use crate::remote::outbox::OutboxStep;
use crate::remote::{call_queue, worker_name};

/// Runs until the connection ends or is closed.
pub(super) async fn run_task(shared: Arc<ConnectionShared>, mut events: Receiver<ControlEvent>) {
    tokio::select! {
        () = handle_events(&shared, &mut events) => return,
        never = send_reports(&shared) => match never {},
        () = shared.closing.notified() => (),
    }
    // Closing: send what waits, drop the handle, then handle events until the connection has ended.
    let flush = async {
        flush_outbox(&shared).await;
        shared.drop_control();
        handle_events(&shared, &mut events).await;
    };
    let _ = tokio::time::timeout(CLOSE_GRACE, flush).await;
    shared.drop_control();
    shared.set_status(RendezvousStatus::Closed(
        "the connection to the rendezvous is closed".to_owned(),
    ));
}

async fn handle_events(shared: &ConnectionShared, events: &mut Receiver<ControlEvent>) {
    while let Some(event) = events.recv().await {
        match event {
            ControlEvent::Connected(welcome) => shared.set_status(RendezvousStatus::Connected {
                loopback: welcome.mapped_addr.ip().is_loopback(),
            }),
            ControlEvent::Disconnected { why } => {
                shared.set_status(RendezvousStatus::Disconnected(why))
            }
            ControlEvent::Ended(over) => {
                shared.set_status(RendezvousStatus::Closed(over.to_string()))
            }
            ControlEvent::IncomingCall(meeting) => handle_call(shared, meeting),
            ControlEvent::Report { from, report } => handle_report(shared, &from, report),
            ControlEvent::Undelivered { .. } => (), // states are repeated
        }
    }
    if !shared.is_closed() {
        shared.set_status(RendezvousStatus::Closed(
            "the connection to the rendezvous is closed".to_owned(),
        ));
    }
}

/// Queues a call. Calls of other parties than workers of this job, and about other subjects, are
/// not answered.
fn handle_call(shared: &ConnectionShared, meeting: PeerSession) {
    let from = worker_name::from_spiffe_id(&shared.job, &meeting.grant.peer);
    let attempt = call_queue::subject_attempt(&meeting.grant.about);
    match from.zip(attempt) {
        Some((from, attempt)) => shared.add_call(from, attempt, meeting),
        None => {
            tracing::debug!(peer = %meeting.grant.peer, about = meeting.grant.about, "call not answered")
        }
    }
}

fn handle_report(shared: &ConnectionShared, from: &SpiffeId, report: JobReport) {
    if let (Some(from), Some(part)) = (
        worker_name::from_spiffe_id(&shared.job, from),
        MessagePart::from_report(report),
    ) {
        shared.receive_part(&from, part);
    }
}

async fn send_reports(shared: &ConnectionShared) -> std::convert::Infallible {
    loop {
        match shared.next_report(Instant::now()) {
            OutboxStep::Send(to, report) => send_report(shared, to, report),
            OutboxStep::Idle => shared.outbox_ready.notified().await,
            OutboxStep::WaitUntil(at) => tokio::time::sleep_until(at.into()).await,
        }
    }
}

/// Sends all waiting messages, as fast as the pace permits.
async fn flush_outbox(shared: &ConnectionShared) {
    while !shared.is_flushed() {
        match shared.next_report(Instant::now()) {
            OutboxStep::Send(to, report) => send_report(shared, to, report),
            OutboxStep::WaitUntil(at) => tokio::time::sleep_until(at.into()).await,
            OutboxStep::Idle => return,
        }
    }
}

fn send_report(shared: &ConnectionShared, to: Option<SpiffeId>, report: JobReport) {
    if let Ok(control) = shared.control() {
        control.send_report(to, report);
    }
}
