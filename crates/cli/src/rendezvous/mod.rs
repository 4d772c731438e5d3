//! `nearpath rendezvous`: where workers behind NATs meet, and tickets for them.
//!
//! [`args`] is what was typed, [`run`] serves until a signal, [`ticket`] mints. What is served is `nearpath_meet::server`.

mod args;
mod serve;
mod ticket;

pub use args::{RendezvousArgs, RendezvousCommand, ServeArgs, TicketArgs};

use crate::exit::Outcome;

/// Serves, or mints a ticket.
pub(crate) fn run(args: &RendezvousArgs) -> Outcome {
    match &args.command {
        Some(RendezvousCommand::Ticket(ticket)) => ticket::run(ticket),
        None => serve::run(&args.serve),
    }
}
