//! A clock with the kernel's resolution: a thread that sleeps until the next arrival is due and
//! then signals it. Tokio's own timer rounds up to a millisecond, which an open loop would report
//! as latency of the server.

use std::io;
use std::time::Instant;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::schedule::ArrivalSchedule;

/// Starts a thread that sends the number of each arrival when it is due. The channel ends after the
/// last one.
pub(crate) fn start_pacer(
    schedule: ArrivalSchedule,
    start: Instant,
) -> io::Result<UnboundedReceiver<u64>> {
    let (due, arrivals) = unbounded_channel();
    std::thread::Builder::new()
        .name("pacer".into())
        .spawn(move || pace_arrivals(schedule, start, &due))?;
    Ok(arrivals)
}

fn pace_arrivals(schedule: ArrivalSchedule, start: Instant, due: &UnboundedSender<u64>) {
    let mut sent = 0;
    while sent < schedule.total_arrivals() {
        let now_due = schedule.due_arrivals(start.elapsed());
        if (sent..now_due).any(|n| due.send(n).is_err()) {
            return; // the receiver is gone
        }
        sent = sent.max(now_due);
        std::thread::sleep(schedule.arrival_time(sent).saturating_sub(start.elapsed()));
    }
}
