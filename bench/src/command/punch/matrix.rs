//! All pairs of site kinds, over each transport alone, many times: direct where theory permits it,
//! and relayed otherwise.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearpath_p2p::Transport;
use nearpath_p2p::driver::SearchOutcome;
use nearpath_p2p::link::P2pLink;
use nearpath_p2p::migrate::{StreamPath, StreamPaths};
use nearpath_testkit::lab::LinkConditions as Line;
use nearpath_testkit::lab::nat::{NatKind, NatPlan};
use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::PunchArgs;
use crate::compare::{BenchComparison, BetterDirection, GoalRatio, LoadSample, RoundSample};
use crate::p2p::fixture::{ControlTransport, RendezvousSetup};
use crate::p2p::theory;
use crate::p2p::worker::{LinkOptions, NatWorker, WorkerPair};
use crate::remote::BenchError;
use crate::tally::{RequestFailure, RequestTally};

const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Udp];
/// One-way delay between a site and the internet.
const SITE_DELAY: Duration = Duration::from_millis(5);
/// Time limit of a session; longer ones count as hung.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes that each side sends before and after the outcome is known.
const MESSAGE_BYTES: [usize; 2] = [3000, 20_000];

/// Outcome of a session in which every byte arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkOutcome {
    Direct,
    Relay,
}

/// Counts of one pair over one transport.
#[derive(Default)]
struct SessionCount {
    direct: u64,
    relay: u64,
    failed: u64,
    hung: u64,
    times: RequestTally,
    slowest: Duration,
}

type CaseKey = (usize, usize, usize);

/// Runs all pairs mixed, with this number of concurrent sessions.
pub(super) async fn measure(
    args: &PunchArgs,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    if args.tries == 0 || !args.wants_case("matrix") {
        return Ok(());
    }
    let begun = Instant::now();
    let counts = run_matrix(args).await?;
    report_counts(&counts, comparison);
    let sessions = counts
        .values()
        .map(|count| count.times.answered_count())
        .sum::<u64>();
    let took = begun.elapsed().as_secs();
    comparison.add_remark(format!(
        "matrix: {sessions} sessions in {took} s, {} concurrent",
        args.at_once
    ));
    Ok(())
}

async fn run_matrix(args: &PunchArgs) -> Result<BTreeMap<CaseKey, SessionCount>, BenchError> {
    let (_fixture, _workers, worker_pairs) = set_up_pairs().await?;
    let (permits, mut sessions) = (
        Arc::new(Semaphore::new(args.at_once.max(1))),
        JoinSet::new(),
    );
    let mut counts = BTreeMap::<CaseKey, SessionCount>::new();
    for number in 0..args.tries {
        for (&(first, second), worker_pair) in &worker_pairs {
            for (at, transport) in TRANSPORTS.into_iter().enumerate() {
                // Bounded: too many concurrent searches would time out on the processors, not on
                // the NATs.
                let place = permits.clone().acquire_owned().await?;
                let worker_pair = worker_pair.clone();
                sessions.spawn_local(async move {
                    let outcome = run_pair(&worker_pair, transport).await;
                    drop(place);
                    ((at, first, second), outcome)
                });
                // Counted while it runs: thousands of results are not kept.
                while let Some(done) = sessions.try_join_next() {
                    count_session(&mut counts, done?);
                }
            }
        }
        eprintln!("matrix: started round {} of {}", number + 1, args.tries);
    }
    while let Some(done) = sessions.join_next().await {
        count_session(&mut counts, done?);
    }
    Ok(counts)
}

type WorkerPairs = BTreeMap<(usize, usize), Arc<WorkerPair>>;

/// Creates two sites of each kind: one with a caller, one with a callee.
async fn set_up_pairs() -> Result<(RendezvousSetup, Vec<[NatWorker; 2]>, WorkerPairs), BenchError> {
    let line = Line {
        delay: SITE_DELAY,
        ..Line::default()
    };
    let mut fixture = RendezvousSetup::new(&Line::plain()).await?;
    let mut workers = Vec::new();
    for kind in NatKind::ALL {
        let plan = NatPlan {
            conditions: line.clone(),
            is_plain: true,
            ..kind.into()
        };
        let sites = [
            fixture.internet.add_site(plan.clone())?,
            fixture.internet.add_site(plan)?,
        ];
        let name = |role| format!("{role}.{kind:?}").to_lowercase();
        let calls = NatWorker::start_worker(
            &fixture,
            sites[0].first_machine(),
            &name("a"),
            ControlTransport::Tls,
        )
        .await?;
        workers.push([
            calls,
            NatWorker::start_worker(
                &fixture,
                sites[1].first_machine(),
                &name("b"),
                ControlTransport::Tls,
            )
            .await?,
        ]);
    }
    let mut worker_pairs = BTreeMap::new();
    for first in 0..workers.len() {
        // Each pair once: which side calls makes no difference to the NATs.
        for second in first..workers.len() {
            worker_pairs.insert(
                (first, second),
                Arc::new(workers[first][0].pair_with(&workers[second][1], &fixture)?),
            );
        }
    }
    Ok((fixture, workers, worker_pairs))
}

async fn run_pair(
    worker_pair: &WorkerPair,
    over: Transport,
) -> (Duration, Result<LinkOutcome, RequestFailure>) {
    let how = LinkOptions::over_transports(&[over]);
    match tokio::time::timeout(
        HANG_TIMEOUT,
        worker_pair.run_session(&how, exchange_messages),
    )
    .await
    {
        Err(_) => (HANG_TIMEOUT, Err(RequestFailure::Timeout)),
        Ok(Ok([(one, after), (other, later)])) if one == other => (after.max(later), Ok(one)),
        // The sides disagree about the path, which is an error of the protocol.
        Ok(Ok(_)) => (HANG_TIMEOUT, Err(RequestFailure::Body)),
        Ok(Err(error)) => {
            eprintln!("matrix, {over:?}: {error}");
            (HANG_TIMEOUT, Err(RequestFailure::Broken))
        }
    }
}

/// Sends on both sides before and after the outcome of hole punching, and checks the received
/// bytes. Returns the outcome, and the time until all bytes had arrived.
async fn exchange_messages(
    link: P2pLink,
    calls: bool,
    begun: Instant,
) -> io::Result<(LinkOutcome, Duration)> {
    let known = link.status().clone();
    let (read, mut write) = split(link);
    let writes = async {
        write.write_all(&message_bytes(calls, 0)).await?;
        write.flush().await?;
        let mut verdict = known.outcome.clone();
        let settled = verdict
            .wait_for(|verdict| *verdict != SearchOutcome::Searching)
            .await
            .map(|verdict| *verdict);
        let direct = matches!(settled, Ok(SearchOutcome::Direct { .. }));
        if direct {
            let mut places = known.paths.clone();
            // Both directions must have moved before the second message, or it would still take the
            // relay.
            let _ = places
                .wait_for(|places| {
                    *places
                        == StreamPaths {
                            outgoing: StreamPath::Direct,
                            incoming: StreamPath::Direct,
                        }
                })
                .await;
        }
        write.write_all(&message_bytes(calls, 1)).await?;
        write.shutdown().await?;
        Ok::<_, io::Error>((
            write,
            if direct {
                LinkOutcome::Direct
            } else {
                LinkOutcome::Relay
            },
        ))
    };
    let reads = async {
        let (mut read, mut came) = (read, Vec::new());
        read.read_to_end(&mut came).await?;
        let whole = came == [message_bytes(!calls, 0), message_bytes(!calls, 1)].concat();
        if whole {
            Ok((read, begun.elapsed()))
        } else {
            Err(io::Error::other("received other bytes than were sent"))
        }
    };
    let ((write, outcome), (read, after)) = tokio::try_join!(writes, reads)?;
    read.unsplit(write).close().await?;
    Ok((outcome, after))
}

fn message_bytes(calls: bool, piece: usize) -> Vec<u8> {
    // Seeded by side and message: the reader computes what it must receive.
    let mut random = fastrand::Rng::with_seed(u64::from(calls) * 2 + piece as u64);
    std::iter::repeat_with(|| random.u8(..))
        .take(MESSAGE_BYTES[piece])
        .collect()
}

fn count_session(
    counts: &mut BTreeMap<CaseKey, SessionCount>,
    (key, (took, outcome)): (CaseKey, (Duration, Result<LinkOutcome, RequestFailure>)),
) {
    let count = counts.entry(key).or_default();
    match &outcome {
        Ok(LinkOutcome::Direct) => count.direct += 1,
        Ok(LinkOutcome::Relay) => count.relay += 1,
        Err(RequestFailure::Timeout) => count.hung += 1,
        Err(_) => count.failed += 1,
    }
    count.slowest = count.slowest.max(took);
    count.times.record_outcome(outcome.map(|_| took));
}

fn report_counts(counts: &BTreeMap<CaseKey, SessionCount>, comparison: &mut BenchComparison) {
    let (mut least, mut fell_back, mut lost, mut hung) = (1.0_f64, 1.0_f64, 0, 0);
    let mut slowest = (Duration::ZERO, String::new());
    for (&(transport, first, second), count) in counts {
        let (kinds, over) = (
            [NatKind::ALL[first], NatKind::ALL[second]],
            TRANSPORTS[transport],
        );
        let permitted = theory::permits_direct(kinds, over);
        let all = (count.direct + count.relay + count.failed + count.hung) as f64;
        let name = format!("{:?} + {:?}", kinds[0], kinds[1]);
        if permitted {
            least = least.min(count.direct as f64 / all);
        } else {
            // A direct link where theory forbids it is no failure; only a lost session is.
            fell_back = fell_back.min((count.direct + count.relay) as f64 / all);
        }
        (lost, hung) = (lost + count.failed, hung + count.hung);
        if count.slowest > slowest.0 {
            slowest = (count.slowest, format!("{name}, {over:?}"));
        }
        let expected = if permitted { count.direct } else { count.relay };
        if expected as f64 != all {
            let of = format!(
                "{} direct, {} relayed, {} failed, {} hung",
                count.direct, count.relay, count.failed, count.hung
            );
            comparison.add_remark(format!(
                "matrix, {over:?}, {name} ({}): {of}",
                if permitted {
                    "direct path possible"
                } else {
                    "no direct path possible"
                }
            ));
        }
        let place = if permitted { "direct" } else { "relay" };
        let sample = RoundSample::from_tally(&count.times, Duration::from_secs(1), Duration::ZERO);
        comparison.add_single(
            &format!("matrix, {over:?}, {place}"),
            &name,
            LoadSample::from(RoundSample { rps: 0.0, ..sample }),
        );
    }
    comparison.add_remark(format!(
        "matrix: the slowest session took {:.2} s: {}",
        slowest.0.as_secs_f64(),
        slowest.1
    ));
    add_matrix_goals(comparison, [least, fell_back], [lost, hung]);
}

/// Adds the goals: the lowest shares of direct links and of links that delivered all bytes, and the
/// numbers of failed and hung links.
fn add_matrix_goals(
    comparison: &mut BenchComparison,
    [direct, delivered]: [f64; 2],
    [failed, hung]: [u64; 2],
) {
    let (higher, lower) = (BetterDirection::Higher, BetterDirection::Lower);
    for (name, value, better, goal) in [
        (
            "matrix, lowest share of direct links, pairs with a possible direct path",
            direct,
            higher,
            0.99,
        ),
        (
            "matrix, lowest share of links that delivered all bytes, other pairs",
            delivered,
            higher,
            1.0,
        ),
        ("matrix, failed links", failed as f64, lower, 0.0),
        ("matrix, hung links", hung as f64, lower, 0.0),
    ] {
        comparison.add_figure(GoalRatio {
            name: name.to_owned(),
            value,
            better,
            goal,
        });
    }
}
