//! Redis (and Valkey, KeyDB): a client has a backend only while a reply is outstanding, or something of its own is in the backend: a transaction, a watch,
//! a mode. Many short-lived functions so share few connections.
//!
//! Where egress says so, values are kept ([`cache`]) and writes are answered before they are done ([`early_write`]); [`command_effect`] knows which commands read and
//! write what.
//!
//! [`frame`] finds where commands and replies end, [`session_effect`] knows what a command leaves on its connection, [`session`] is the state machine of one
//! client, [`settings`] what of a connection can be made again on another one, [`backend`] makes and cleans them, and [`relay`] moves the bytes.

mod attach;
pub mod backend;
pub mod cache;
pub mod command_effect;
mod early_write;
pub mod frame;
mod input;
mod prefetch;
mod relay;
pub mod session;
pub mod session_effect;
pub mod settings;

use std::cell::{OnceCell, RefCell};
use std::io;
use std::rc::Rc;

use nearpath_types::egress::Cache;
use tokio::net::TcpStream;

use crate::Visit;
use backend::Backend;
use cache::Answers;
use command_effect::Effect;
use nearpath_connpool::adapter_state::{Idlers, Room};
use nearpath_connpool::destination::Destination;
use nearpath_connpool::idle::Bench;
use prefetch::Reads;
pub use prefetch::foresee;
use settings::{Identity, Known};

/// What is kept from one client to the next.
struct House {
    bench: Rc<Bench<Identity, Backend>>,
    known: RefCell<Known>,
    /// Values; `None`: none are kept.
    answers: Option<RefCell<Answers>>,
    /// Reads that are issued ahead; empty: none are.
    reads: OnceCell<Rc<Reads>>,
}

impl House {
    /// Something was written, or may have been.
    fn wrote(&self, effect: &Effect, db: Option<u32>) {
        if let Some(answers) = &self.answers {
            answers.borrow_mut().wrote(effect, db);
        }
        if let Some(reads) = self.reads.get() {
            prefetch::wrote(reads, effect);
        }
    }
}

impl Room for House {
    fn open(to: &Destination) -> Self {
        let answers = match to.egress.cache {
            Some(Cache::For(time)) => Some(RefCell::new(Answers::new(time))),
            _ => None,
        };
        Self { bench: Bench::new(to), known: RefCell::default(), answers, reads: OnceCell::new() }
    }

    fn idlers(&self) -> Option<&dyn Idlers> {
        Some(&*self.bench)
    }
}

fn house(visit: &Visit) -> Rc<House> {
    let house = visit.upstream.rooms.of::<House>(&visit.upstream.destination);
    if !visit.upstream.destination.egress.prefetch.is_empty() {
        house.reads.get_or_init(|| visit.upstream.rooms.memory(&visit.upstream.destination));
    }
    house
}

/// Serves one client until it leaves.
///
/// # Errors
/// When its connection breaks, or its backend's while it is in use: the client has lost its connection then, as it would have without the pool.
pub async fn serve(client: TcpStream, visit: Visit) -> io::Result<()> {
    let house = house(&visit);
    let mut relay = relay::Relay::new(client, visit, house);
    let served = relay.run().await;
    relay.leave().await;
    served
}
