//! Time to the first byte: from the call of a registered worker until its peer has read the first
//! byte, and the first direct byte.

use std::io;
use std::time::{Duration, Instant};

use nearpath_p2p::Transport::{Tcp, Udp};
use nearpath_p2p::driver::SearchOutcome;
use nearpath_p2p::link::P2pLink;
use nearpath_p2p::migrate::StreamPath;
use nearpath_testkit::lab::nat::{NatKind, NatPlan};
use tokio::io::{AsyncReadExt, AsyncWriteExt, split};

use super::{PunchArgs, RoundTrips};
use crate::compare::{BenchComparison, BetterDirection, GoalRatio, RoundSample};
use crate::p2p::fixture::{ControlTransport, RendezvousSetup};
use crate::p2p::worker::{LinkOptions, NatWorker, WorkerPair};
use crate::remote::BenchError;
use crate::tally::RequestTally;

/// Pairs of NAT kinds; the first one calls.
const NAT_PAIRS: [[NatKind; 2]; 4] = [
    [NatKind::None, NatKind::None],
    [NatKind::PortRestricted, NatKind::PortRestricted],
    [NatKind::Symmetric, NatKind::Restricted],
    RELAYED_PAIR,
];
/// Pair without a direct path: the measurement does not wait for one.
const RELAYED_PAIR: [NatKind; 2] = [NatKind::Symmetric, NatKind::Symmetric];
/// Transports of the control connections.
const CONTROL_TRANSPORTS: [(ControlTransport, &str); 2] = [
    (ControlTransport::Tls, "wss"),
    (ControlTransport::Plain, "ws"),
];
/// Bytes sent at once over any path, over the direct path, and at the end.
const FIRST_BYTE: u8 = b'f';
const DIRECT_BYTE: u8 = b'd';

/// Measures all kinds at this distance.
pub(super) async fn measure(
    args: &PunchArgs,
    trips: RoundTrips,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    for kinds in NAT_PAIRS {
        let case =
            |what: &str| format!("first byte{what}, {:?} + {:?}, {trips}", kinds[0], kinds[1]);
        if !args.wants_case(&case("")) {
            continue;
        }
        let names = CONTROL_TRANSPORTS.map(|(_, name)| name);
        let setup = FirstByteSetup::set_up(kinds, trips).await?;
        let mut direct = vec![Vec::new(); CONTROL_TRANSPORTS.len()];
        let one = async |index: usize| {
            let times = setup
                .measure_sessions(index, args.sessions, kinds != RELAYED_PAIR)
                .await?;
            direct[index].push(to_sample(times.iter().filter_map(|times| times.direct)));
            Ok::<_, BenchError>(to_sample(times.iter().map(|times| times.first)))
        };
        comparison.measure_case(&case(""), &names, one).await?;
        // Where there is no direct path, there is no time to it.
        if kinds != RELAYED_PAIR {
            let mut direct = direct.into_iter().map(Vec::into_iter).collect::<Vec<_>>();
            let again = async |index: usize| {
                Ok::<_, BenchError>(
                    direct[index]
                        .next()
                        .unwrap_or_else(|| to_sample([].into_iter())),
                )
            };
            comparison
                .measure_case(&case(" directly"), &names, again)
                .await?;
        }
        // The promise of the guide: three round trips to the rendezvous and two between the peers.
        let budget = trips.rendezvous * 3 + trips.peers * 2;
        for name in names {
            let p50 = comparison
                .row_value(&case(""), name, |row| row.p50_us)
                .unwrap_or(f64::NAN);
            let name = format!(
                "p50, {}, {name} / (3 rendezvous + 2 peer round trips)",
                case("")
            );
            let value = p50 / 1e6 / budget.as_secs_f64();
            comparison.add_figure(GoalRatio {
                name,
                value,
                better: BetterDirection::Lower,
                goal: 1.0,
            });
        }
    }
    Ok(())
}

fn to_sample(times: impl Iterator<Item = Duration>) -> RoundSample {
    let (mut tally, mut all) = (RequestTally::default(), Duration::ZERO);
    for time in times {
        all += time;
        tally.record_outcome(Ok(time));
    }
    // At least 1 ns, or the rate of an empty sample would be NaN.
    RoundSample::from_tally(&tally, all.max(Duration::from_nanos(1)), Duration::ZERO)
}

/// Times of a session.
#[derive(Debug, Clone, Copy)]
struct SessionTimes {
    first: Duration,
    /// Time to the first direct byte; `None`: relayed.
    direct: Option<Duration>,
}

/// A pair for each control transport.
struct FirstByteSetup {
    worker_pairs: Vec<WorkerPair>,
    _workers: Vec<NatWorker>,
    _fixture: RendezvousSetup,
}

impl FirstByteSetup {
    async fn set_up(kinds: [NatKind; 2], trips: RoundTrips) -> Result<Self, BenchError> {
        let mut fixture = RendezvousSetup::new(&trips.rendezvous_link()).await?;
        let plan = |kind: NatKind| NatPlan {
            conditions: trips.site_link(),
            is_plain: true,
            ..kind.into()
        };
        let sites = [
            fixture.internet.add_site(plan(kinds[0]))?,
            fixture.internet.add_site(plan(kinds[1]))?,
        ];
        let (mut worker_pairs, mut workers) = (Vec::new(), Vec::new());
        for (transport, name) in CONTROL_TRANSPORTS {
            let first = NatWorker::start_worker(
                &fixture,
                sites[0].first_machine(),
                &format!("a.{name}"),
                transport,
            )
            .await?;
            let second = NatWorker::start_worker(
                &fixture,
                sites[1].first_machine(),
                &format!("b.{name}"),
                transport,
            )
            .await?;
            worker_pairs.push(first.pair_with(&second, &fixture)?);
            workers.extend([first, second]);
        }
        Ok(Self {
            worker_pairs,
            _workers: workers,
            _fixture: fixture,
        })
    }

    async fn measure_sessions(
        &self,
        transport: usize,
        sessions: usize,
        waits: bool,
    ) -> Result<Vec<SessionTimes>, BenchError> {
        let mut all = Vec::new();
        for _ in 0..sessions {
            let how = LinkOptions::over_transports(&[Tcp, Udp]);
            let work = move |link, calls, begun| async move {
                if calls {
                    run_caller(link, waits).await.map(|()| None)
                } else {
                    run_callee(link, begun).await.map(Some)
                }
            };
            let [_, times] = self.worker_pairs[transport].run_session(&how, work).await?;
            all.extend(times);
        }
        Ok(all)
    }
}

/// Sends a byte at once, and another one when the direct path is established or impossible. Reads
/// the peer's response meanwhile: a path moves only during reads or writes.
async fn run_caller(link: P2pLink, waits: bool) -> io::Result<()> {
    // Before the split, which consumes the link.
    let known = link.status().clone();
    let (mut read, mut write) = split(link);
    write.write_all(&[FIRST_BYTE]).await?;
    write.flush().await?;
    let sends = async {
        let (mut places, mut verdict) = (known.paths.clone(), known.outcome.clone());
        tokio::select! {
            // Pairs without a direct path send at once, or each session would last the whole
            // search.
            () = std::future::ready(()), if !waits => (),
            moved = places.wait_for(|places| places.outgoing == StreamPath::Direct) => drop(moved),
            none = verdict.wait_for(|verdict| matches!(verdict, SearchOutcome::Relayed(_) | SearchOutcome::Failed(_))) => drop(none),
        }
        let direct = places.borrow().outgoing == StreamPath::Direct;
        write
            .write_all(if direct {
                &[DIRECT_BYTE]
            } else {
                &[FIRST_BYTE]
            })
            .await?;
        write.shutdown().await?;
        Ok::<_, io::Error>(write)
    };
    let (write, _) = tokio::try_join!(sends, async { read.read_u8().await })?;
    read.unsplit(write).close().await
}

async fn run_callee(mut link: P2pLink, begun: Instant) -> io::Result<SessionTimes> {
    let mut times = SessionTimes {
        first: Duration::ZERO,
        direct: None,
    };
    if link.read_u8().await? == FIRST_BYTE {
        times.first = begun.elapsed();
    }
    if link.read_u8().await? == DIRECT_BYTE {
        times.direct = Some(begun.elapsed());
    }
    link.write_all(b"!").await?;
    link.close().await?;
    Ok(times)
}
