//! A process of a circle that hands on what comes.

use std::io;
use std::os::fd::RawFd;

use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::bare::BareLane;
use super::message::MessageLane;
use super::sockmap::SockmapLane;
use super::{RingEndpoint, RingLane, RingVariant, inherited_fds};

/// Options of an endpoint; only `ring` starts it.
#[derive(clap::Args)]
pub(crate) struct RingEndpointArgs {
    #[arg(long)]
    pub(super) variant: RingVariant,
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
pub(crate) fn serve_ring(args: &RingEndpointArgs) -> io::Result<()> {
    // The parent may be killed; an endpoint that polls would then use a processor for ever.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    pin_thread(&[args.core])?;
    let seat = RingEndpoint::open(
        &mut inherited_fds(&args.fds).into_iter(),
        args.seat,
        args.of,
        args.variant,
    )?;
    match args.variant {
        RingVariant::Bare => pass_items(BareLane::new(&seat)?, seat),
        RingVariant::Sockmap => pass_items(SockmapLane::new(&seat)?, seat),
        _ => pass_items(MessageLane::new(&seat), seat),
    }
    Ok(())
}

fn pass_items(mut lane: impl RingLane, mut seat: RingEndpoint) {
    // A peer that waits on the same core yields instead of spinning (see WakeupCell).
    seat.wakeup.record_core();
    loop {
        loop {
            match lane
                .take_item()
                .and_then(|item| item.map(|item| lane.pass_on(item)).transpose())
            {
                Ok(Some(())) => {}
                Ok(None) => break,
                // The channel was closed: the regular end of an endpoint.
                Err(_) => return,
            }
        }
        // One wake-up for a batch: as the gateway and the watchdogs do it.
        lane.flush_batch();
        lane.wait_ready(&mut seat.wakeup, None);
    }
}

/// Keeps the calling thread on these processors.
pub(super) fn pin_thread(cores: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|&core| set.set(core));
    Ok(sched_setaffinity(None, &set)?)
}
