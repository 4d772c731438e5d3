//! The pool's side of one instance: what its clerk asks for, from what is warm.

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

/// Answers the connects of one instance until all that ran in it have ended. On a thread with a local set of tasks; the calls themselves are looked at by a
/// thread of the instance's own, which goes on without warm sockets when this is dropped.
///
/// # Errors
/// When there is no thread to be had: then the instance's connects fail with `ENOSYS`.
pub async fn supervise_connects(
    handed: ListenerHandover,
    destinations: Vec<Rc<EgressDestination>>,
    stock: Rc<dyn WarmSource>,
    given: Rc<HandedSockets>,
) -> io::Result<()> {
    answer_requests(handed, destinations, stock, given, true).await
}

/// As [`supervise_connects`], without a look at the caller's other descriptors.
#[doc(hidden)] // a test's control: with this, programs that register, or duplicate, before they connect go wrong
pub async fn supervise_without_alias_search(
    handed: ListenerHandover,
    destinations: Vec<Rc<EgressDestination>>,
    stock: Rc<dyn WarmSource>,
    given: Rc<HandedSockets>,
) -> io::Result<()> {
    answer_requests(handed, destinations, stock, given, false).await
}

async fn answer_requests(
    handed: ListenerHandover,
    destinations: Vec<Rc<EgressDestination>>,
    stock: Rc<dyn WarmSource>,
    given: Rc<HandedSockets>,
    looks_around: bool,
) -> io::Result<()> {
    let ((ask, mut asked), (answer, answers)) = (unbounded_channel(), channel());
    let places = destinations
        .iter()
        .map(|to| interceptable_addr(to))
        .collect();
    let wanted = destinations
        .iter()
        .map(|to| interceptable_addr(to).and_then(|_| stock.ready_slot(to)));
    let clerk = ConnectSupervisor::new(
        handed,
        places,
        wanted.collect(),
        (ask, answers),
        looks_around,
    );
    thread::Builder::new()
        .name("connects".into())
        .spawn(move || clerk.run())?;
    while let Some(asked) = asked.recv().await {
        match asked {
            SupervisorRequest::WantWarm(number, family) => {
                let to = &destinations[number];
                let warm = stock
                    .take_warm(to, family)
                    .map(|warm| given.track_socket(warm));
                let ledger = stock.counters_for(to);
                if warm.is_some() {
                    ledger.count_handed_over()
                } else {
                    ledger.count_pass_through(PassThroughReason::Empty.label())
                }
                let _ = answer.send(warm); // a clerk that has gone leaves it closed
            }
            SupervisorRequest::Taken(number, socket, handed) => {
                let to = &destinations[number];
                let own = stock
                    .confirm_taken(to, socket)
                    .map(|warm| given.track_socket(warm));
                drop(own); // from here on it is the function's alone
                if handed {
                    stock.counters_for(to).count_handed_over();
                }
            }
            SupervisorRequest::PassedThrough(number, doubt) => stock
                .counters_for(&destinations[number])
                .count_pass_through(doubt.label()),
        }
    }
    Ok(())
}
