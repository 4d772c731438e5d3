//! Chains of functions on a row of machines; each calls the next one over a new connection.

use std::net::IpAddr;
use std::time::Duration;

use nearpath_testkit::lab::{LabLink, LabNode, LinkConditions, NetworkLab};

use super::{NetworkPlace, QuicArgs, near, run_local, transport_names};
use crate::compare::BenchComparison;
use crate::cpu;
use crate::remote::caller::{CalleeAddress, RemoteCaller};
use crate::remote::identities::{BenchAuthority, CallIdentity, mint_session};
use crate::remote::{BenchError, RemoteTransport, all_transports, chain_hop, drive};

/// Transports: a single example of one-sided certificates, and of handshakes with a session,
/// suffices.
const CHAIN_TRANSPORTS: [RemoteTransport; 6] = [
    RemoteTransport::Tcp,
    RemoteTransport::Tls12,
    RemoteTransport::Tls13,
    RemoteTransport::Tls13Resumed,
    RemoteTransport::Quic,
    RemoteTransport::QuicEarly,
];
/// Initial sessions: more than a chain uses before new sessions arrive.
const SESSION_COUNT: usize = 8;

/// Measures chains of one function, two, and so on.
pub(super) fn measure(args: &QuicArgs, comparison: &mut BenchComparison) -> Result<(), BenchError> {
    let lengths = (1..=args.longest)
        .map(|length| (format!("chain of {length}, {}", args.chain_delay), length));
    let lengths: Vec<_> = lengths.filter(|(case, _)| args.wants_case(case)).collect();
    if lengths.is_empty() {
        return Ok(());
    }
    let NetworkPlace::Link(delay) = args.chain_delay else {
        return Err("invalid --chain-delay: chains need a link, expected milliseconds".into());
    };
    let mut lab = NetworkLab::new()?;
    let gateway = lab.add_node("gateway")?;
    let link = LinkConditions {
        delay,
        awake: args.awake,
        ..LinkConditions::default()
    };
    // The longest chain serves all lengths: a call states how many hops are left.
    let (identity, first, threads) = build_chain(&mut lab, &gateway, &link, args.longest)?;
    gateway.enter(|| {
        run_local(async {
            let caller = RemoteCaller::new(identity)?;
            for (case, length) in &lengths {
                measure_length(args, comparison, &caller, &first, (case, *length), &threads)
                    .await?;
            }
            Ok(())
        })
    })
}

async fn measure_length(
    args: &QuicArgs,
    comparison: &mut BenchComparison,
    caller: &RemoteCaller,
    first: &CalleeAddress,
    (case, length): (&str, usize),
    threads: &[u32],
) -> Result<(), BenchError> {
    let transports = args.wanted_transports(&CHAIN_TRANSPORTS);
    let spent = || -> Duration { cpu::threads_cpu(threads) };
    let measure = async |index: usize| {
        let transport = transports[index];
        let took = drive::call_fresh(
            caller,
            (transport, first),
            &chain_hop::chain_call(transport, length),
            args.call_plan(),
            spent,
        )
        .await;
        Ok::<_, BenchError>(near::print_failures(case, transport.name(), &took).to_sample())
    };
    comparison
        .measure_loads(case, &transport_names(&transports), measure)
        .await?;
    eprintln!("measured: {case}");
    Ok(())
}

/// Creates the links and starts the functions. Returns the caller of the first one, its address,
/// and the functions' threads.
fn build_chain(
    lab: &mut NetworkLab,
    gateway: &LabNode,
    link: &LinkConditions,
    length: usize,
) -> Result<(CallIdentity, CalleeAddress, Vec<u32>), BenchError> {
    let site = BenchAuthority::new()?;
    let mut places: Vec<(LabNode, LabLink)> = Vec::new();
    for number in 0..length {
        let node = lab.add_node(&format!("hop{number}"))?;
        let before = places
            .last()
            .map_or_else(|| gateway.clone(), |(node, _)| node.clone());
        let link = lab.connect_nodes(&before, &node, link)?;
        places.push((node, link));
    }
    let (mut next, mut threads): (Option<(CallIdentity, CalleeAddress)>, Vec<u32>) =
        (None, Vec::new());
    // From the end: a hop needs the address of the next one.
    for (number, (node, link)) in places.into_iter().enumerate().rev() {
        let mut provision = site.worker_provision(number as u64)?;
        let (before, at) = (link.first_end().v4, link.second_end().v4);
        let caller = match number {
            0 => site.gateway_identity()?,
            _ => site.caller_identity(&site.worker_provision(100 + number as u64)?.credentials)?,
        };
        for _ in 0..SESSION_COUNT {
            mint_session(&mut provision, &caller, IpAddr::V4(before))?;
        }
        let callee = all_transports::callee_address(IpAddr::V4(at), &provision);
        threads.push(chain_hop::start_hop(chain_hop::ChainHop {
            node,
            provision,
            next: next.take(),
        })?);
        next = Some((caller, callee));
    }
    let (identity, first) = next.ok_or("an empty chain")?;
    Ok((identity, first, threads))
}
