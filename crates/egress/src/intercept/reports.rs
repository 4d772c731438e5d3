//! Answers the requests of an instance's supervisor, on the pool's thread.

use std::io;
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::thread;

use nearpath_kernel::seccomp::handover::ListenerHandover;
use tokio::sync::mpsc::unbounded_channel;

use super::WarmSource;
use super::decision::{PassThroughReason, interceptable_addr};
use super::handed_sockets::HandedSockets;
use super::supervisor::{ConnectSupervisor, SupervisorRequest};
use nearpath_connpool::destination::EgressDestination;

/// Answers the connects of an instance until all its processes have ended. Needs a local task set.
/// A thread of the instance inspects the calls; it continues without warm sockets when this is
/// dropped.
///
/// # Errors
/// When no thread is available: the instance's connects then fail with `ENOSYS`.
pub async fn supervise_connects(
    handover: ListenerHandover,
    destinations: Vec<Rc<EgressDestination>>,
    source: Rc<dyn WarmSource>,
    handed_sockets: Rc<HandedSockets>,
) -> io::Result<()> {
    answer_requests(handover, destinations, source, handed_sockets, true).await
}

/// Works as [`supervise_connects`] without the search for aliases.
#[doc(hidden)] // a test's control: programs that register or duplicate before they connect break
pub async fn supervise_without_alias_search(
    handover: ListenerHandover,
    destinations: Vec<Rc<EgressDestination>>,
    source: Rc<dyn WarmSource>,
    handed_sockets: Rc<HandedSockets>,
) -> io::Result<()> {
    answer_requests(handover, destinations, source, handed_sockets, false).await
}

async fn answer_requests(
    handover: ListenerHandover,
    destinations: Vec<Rc<EgressDestination>>,
    source: Rc<dyn WarmSource>,
    handed_sockets: Rc<HandedSockets>,
    searches_aliases: bool,
) -> io::Result<()> {
    // The supervisor blocks for an answer, hence the `std` channel; its requests arrive
    // asynchronously.
    let ((requests, mut request_receiver), (answer, answer_receiver)) =
        (unbounded_channel(), channel());
    let addresses = destinations
        .iter()
        .map(|to| interceptable_addr(to))
        .collect();
    let slots = destinations
        .iter()
        .map(|to| interceptable_addr(to).and_then(|_| source.ready_slot(to)));
    let supervisor = ConnectSupervisor::new(
        handover,
        addresses,
        slots.collect(),
        (requests, answer_receiver),
        searches_aliases,
    );
    thread::Builder::new()
        .name("connects".into())
        .spawn(move || supervisor.run())?;
    while let Some(request) = request_receiver.recv().await {
        match request {
            SupervisorRequest::WantWarm(number, family) => {
                let to = &destinations[number];
                let warm = match source.take_warm(to, family) {
                    Some(warm) => Some(warm),
                    None => source.connect_near(to, family).await,
                };
                // Tracked before the answer: the close event may follow the handover at once.
                let warm = warm.map(|warm| handed_sockets.track_socket(warm));
                let counters = source.counters_for(to);
                if warm.is_some() {
                    counters.count_handed_over()
                } else {
                    counters.count_pass_through(PassThroughReason::Empty.label())
                }
                // A supervisor that has ended drops the socket, which closes it.
                let _ = answer.send(warm);
            }
            SupervisorRequest::Taken(number, socket, installed) => {
                let to = &destinations[number];
                let own = source
                    .confirm_taken(to, socket)
                    .map(|warm| handed_sockets.track_socket(warm));
                // Closes the node's duplicate, so that the function holds the only one.
                drop(own);
                if installed {
                    source.counters_for(to).count_handed_over();
                }
            }
            SupervisorRequest::PassedThrough(number, reason) => source
                .counters_for(&destinations[number])
                .count_pass_through(reason.label()),
        }
    }
    Ok(())
}
