//! A process of a ring that forwards items.

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
    pub(super) index: u16,
    #[arg(long)]
    pub(super) of: u16,
    #[arg(long)]
    pub(super) core: usize,
    #[arg(long, value_delimiter = ',')]
    pub(super) fds: Vec<RawFd>,
}

/// Forwards items until the ring is closed.
pub(crate) fn serve_ring(args: &RingEndpointArgs) -> io::Result<()> {
    // The parent may be killed; an endpoint that polls would then use a processor for ever.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    pin_thread(&[args.core])?;
    let endpoint = RingEndpoint::open(
        &mut inherited_fds(&args.fds).into_iter(),
        args.index,
        args.of,
        args.variant,
    )?;
    match args.variant {
        RingVariant::Bare => forward_items(BareLane::new(&endpoint)?, endpoint),
        RingVariant::Sockmap => forward_items(SockmapLane::new(&endpoint)?, endpoint),
        _ => forward_items(MessageLane::new(&endpoint), endpoint),
    }
    Ok(())
}

fn forward_items(mut lane: impl RingLane, mut endpoint: RingEndpoint) {
    // A peer that waits on the same core yields instead of spinning (see WakeupCell).
    endpoint.wakeup.record_core();
    loop {
        loop {
            match lane
                .take_item()
                .and_then(|item| item.map(|item| lane.forward_item(item)).transpose())
            {
                Ok(Some(())) => {}
                Ok(None) => break,
                // The channel was closed: the regular end of an endpoint.
                Err(_) => return,
            }
        }
        // One wake-up for a batch: as the gateway and the watchdogs do it.
        lane.flush_batch();
        lane.wait_ready(&mut endpoint.wakeup, None);
    }
}

/// Keeps the calling thread on these processors.
pub(super) fn pin_thread(cores: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|&core| set.set(core));
    Ok(sched_setaffinity(None, &set)?)
}
