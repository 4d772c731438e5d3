//! Chains of functions on machines in a row; each calls the next one over a new connection.

use std::net::IpAddr;
use std::time::Duration;

use nearpath_testkit::lab::{LabLink, LabNode, LinkConditions, NetworkLab};

use super::{Args, Place, here, names, near};
use crate::compare::Comparison;
use crate::cpu;
use crate::remote::caller::{Callee, Caller};
use crate::remote::site::{Identity, Site, mint};
use crate::remote::{Error, Way, drive, everywhere, relay};

/// Of those where only the server shows a certificate, and those that wait for a handshake with a session, one call tells enough.
const WAYS: [Way; 6] = [
    Way::Tcp,
    Way::Tls12,
    Way::Tls13,
    Way::Tls13Resumed,
    Way::Quic,
    Way::QuicEarly,
];
/// More than a chain can be behind with those that each connection brings anew.
const SESSIONS: usize = 8;

/// Chains of one function, two, and so on.
pub(super) fn measure(args: &Args, comparison: &mut Comparison) -> Result<(), Error> {
    let lengths = (1..=args.longest)
        .map(|length| (format!("chain of {length}, {}", args.chain_delay), length));
    let lengths: Vec<_> = lengths.filter(|(case, _)| args.wants(case)).collect();
    if lengths.is_empty() {
        return Ok(());
    }
    let Place::Link(delay) = args.chain_delay else {
        return Err("chains need a link: --chain-delay in ms".into());
    };
    let mut lab = NetworkLab::new()?;
    let gateway = lab.add_node("gateway")?;
    let link = LinkConditions {
        delay,
        awake: args.awake,
        ..LinkConditions::default()
    };
    let (identity, first, threads) = chain(&mut lab, &gateway, &link, args.longest)?;
    gateway.enter(|| {
        here(async {
            let caller = Caller::new(identity)?;
            for (case, length) in &lengths {
                one(args, comparison, &caller, &first, (case, *length), &threads).await?;
            }
            Ok(())
        })
    })
}

async fn one(
    args: &Args,
    comparison: &mut Comparison,
    caller: &Caller,
    first: &Callee,
    (case, length): (&str, usize),
    threads: &[u32],
) -> Result<(), Error> {
    let ways = args.ways(&WAYS);
    let spent = || -> Duration { cpu::of_threads(threads) };
    let measure = async |index: usize| {
        let way = ways[index];
        let took = drive::fresh(
            caller,
            (way, first),
            &relay::ask(way, length),
            args.plan(),
            spent,
        )
        .await;
        Ok::<_, Error>(near::told(case, way.name(), &took).measured())
    };
    comparison.loads(case, &names(&ways), measure).await?;
    eprintln!("measured: {case}");
    Ok(())
}

/// Lays the links and starts the functions. Returns who calls the first one, that one, and the functions' threads.
fn chain(
    lab: &mut NetworkLab,
    gateway: &LabNode,
    link: &LinkConditions,
    length: usize,
) -> Result<(Identity, Callee, Vec<u32>), Error> {
    let site = Site::new()?;
    let mut places: Vec<(LabNode, LabLink)> = Vec::new();
    for number in 0..length {
        let node = lab.add_node(&format!("hop{number}"))?;
        let before = places
            .last()
            .map_or_else(|| gateway.clone(), |(node, _)| node.clone());
        let cable = lab.connect_nodes(&before, &node, link)?;
        places.push((node, cable));
    }
    let (mut next, mut threads): (Option<(Identity, Callee)>, Vec<u32>) = (None, Vec::new());
    for (number, (node, cable)) in places.into_iter().enumerate().rev() {
        let mut provision = site.worker(number as u64)?;
        let (before, at) = (cable.first_end().v4, cable.second_end().v4);
        let caller = match number {
            0 => site.gateway()?,
            _ => site.identity(&site.worker(100 + number as u64)?.credentials)?,
        };
        for _ in 0..SESSIONS {
            mint(&mut provision, &caller, IpAddr::V4(before))?;
        }
        let callee = everywhere::callee(IpAddr::V4(at), &provision);
        threads.push(relay::start(relay::Hop {
            node,
            provision,
            next: next.take(),
        })?);
        next = Some((caller, callee));
    }
    let (identity, first) = next.ok_or("a chain has a function")?;
    Ok((identity, first, threads))
}
