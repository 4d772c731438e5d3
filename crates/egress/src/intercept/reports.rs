//! The pool's side of one instance: what its clerk asks for, from what is warm.

use std::io;
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::thread;

use nearpath_kernel::seccomp::handover::ListenerHandover;
use tokio::sync::mpsc::unbounded_channel;

use super::Stock;
use super::decision::{Doubt, place};
use super::handed_sockets::Given;
use super::supervisor::{Asked, Clerk};
use nearpath_connpool::destination::Destination;

/// Answers the connects of one instance until all that ran in it have ended. On a thread with a local set of tasks; the calls themselves are looked at by a
/// thread of the instance's own, which goes on without warm sockets when this is dropped.
///
/// # Errors
/// When there is no thread to be had: then the instance's connects fail with `ENOSYS`.
pub async fn supervise(
    handed: ListenerHandover,
    destinations: Vec<Rc<Destination>>,
    stock: Rc<dyn Stock>,
    given: Rc<Given>,
) -> io::Result<()> {
    attend(handed, destinations, stock, given, true).await
}

/// As [`supervise`], without a look at the caller's other descriptors.
#[doc(hidden)] // a test's control: with this, programs that register, or duplicate, before they connect go wrong
pub async fn supervise_blindly(
    handed: ListenerHandover,
    destinations: Vec<Rc<Destination>>,
    stock: Rc<dyn Stock>,
    given: Rc<Given>,
) -> io::Result<()> {
    attend(handed, destinations, stock, given, false).await
}

async fn attend(
    handed: ListenerHandover,
    destinations: Vec<Rc<Destination>>,
    stock: Rc<dyn Stock>,
    given: Rc<Given>,
    looks_around: bool,
) -> io::Result<()> {
    let ((ask, mut asked), (answer, answers)) = (unbounded_channel(), channel());
    let places = destinations.iter().map(|to| place(to)).collect();
    let wanted = destinations.iter().map(|to| place(to).and_then(|_| stock.tray(to)));
    let clerk = Clerk::new(handed, places, wanted.collect(), (ask, answers), looks_around);
    thread::Builder::new().name("connects".into()).spawn(move || clerk.work())?;
    while let Some(asked) = asked.recv().await {
        match asked {
            Asked::Warm(number, family) => {
                let to = &destinations[number];
                let warm = stock.take(to, family).map(|warm| given.note(warm));
                let ledger = stock.ledger(to);
                if warm.is_some() {
                    ledger.gave()
                } else {
                    ledger.passed(Doubt::Empty.reason())
                }
                let _ = answer.send(warm); // a clerk that has gone leaves it closed
            }
            Asked::Taken(number, socket, handed) => {
                let to = &destinations[number];
                let own = stock.taken(to, socket).map(|warm| given.note(warm));
                drop(own); // from here on it is the function's alone
                if handed {
                    stock.ledger(to).gave();
                }
            }
            Asked::Note(number, doubt) => stock.ledger(&destinations[number]).passed(doubt.reason()),
        }
    }
    Ok(())
}
