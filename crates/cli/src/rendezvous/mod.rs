//! `nearpath rendezvous`: introduces workers behind NATs to each other, and mints their tickets.
//!
//! [`args`] holds the options as typed, [`run`] serves until a signal, [`ticket`] mints. The server
//! itself is `nearpath_rendezvous`.

mod args;
mod serve;
mod ticket;

pub use args::{RendezvousArgs, RendezvousCommand, ServeArgs, TicketArgs};

use crate::exit::CommandResult;

/// Serves, or mints a ticket.
pub(crate) fn run(args: &RendezvousArgs) -> CommandResult {
    match &args.command {
        Some(RendezvousCommand::Ticket(ticket)) => ticket::run(ticket),
        None => serve::run(&args.serve),
    }
}
