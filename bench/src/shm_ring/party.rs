//! A process of a circle that hands on what comes.

use std::io;
use std::os::fd::RawFd;

use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::bare::Bare;
use super::carried::Carried;
use super::message::Messages;
use super::{Lane, Seat, Variant, inherited};

/// Options of a party; `ring` starts it, nobody else.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    pub(super) variant: Variant,
    #[arg(long)]
    pub(super) seat: u16,
    #[arg(long)]
    pub(super) of: u16,
    #[arg(long)]
    pub(super) core: usize,
    #[arg(long, value_delimiter = ',')]
    pub(super) fds: Vec<RawFd>,
}

/// Hands on until the circle is closed.
pub(crate) fn serve(args: &Args) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    pin(&[args.core])?;
    let seat = Seat::open(
        &mut inherited(&args.fds).into_iter(),
        args.seat,
        args.of,
        args.variant,
    )?;
    match args.variant {
        Variant::Bare => hand_on(Bare::new(&seat)?, seat),
        Variant::Sockmap => hand_on(Carried::new(&seat)?, seat),
        _ => hand_on(Messages::new(&seat), seat),
    }
    Ok(())
}

fn hand_on(mut lane: impl Lane, mut seat: Seat) {
    seat.desk.record_core();
    loop {
        loop {
            match lane
                .take()
                .and_then(|item| item.map(|item| lane.pass(item)).transpose())
            {
                Ok(Some(())) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
        lane.flush();
        lane.wait(&mut seat.desk, None);
    }
}

/// Keeps the calling thread on these processors.
pub(super) fn pin(cores: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|&core| set.set(core));
    Ok(sched_setaffinity(None, &set)?)
}
