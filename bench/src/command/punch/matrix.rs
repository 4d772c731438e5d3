//! Every kind of site with every other, over each transport by itself, many times: whether they meet directly where theory says that they can, and
//! over the relay elsewhere.

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

use super::Args;
use crate::compare::{Better, Comparison, Measured, Ratio, Sample};
use crate::p2p::theory;
use crate::p2p::town::{Lines, Town};
use crate::p2p::worker::{Couple, How, Worker};
use crate::remote::Error;
use crate::tally::{Failure, Tally};

const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Udp];
/// One way from a site to the internet.
const DELAY: Duration = Duration::from_millis(5);
/// Who needs longer, hangs.
const HANGS: Duration = Duration::from_secs(60);
/// What each side sends before it is known how, and after that.
const PIECES: [usize; 2] = [3000, 20_000];

/// What became of a meeting in which every byte arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Went {
    Direct,
    Relay,
}

/// Of one pair over one transport.
#[derive(Default)]
struct Count {
    direct: u64,
    relay: u64,
    failed: u64,
    hung: u64,
    times: Tally,
    slowest: Duration,
}

type Key = (usize, usize, usize);

/// All of it at the same time, so many meetings at once.
pub(super) async fn measure(args: &Args, comparison: &mut Comparison) -> Result<(), Error> {
    if args.tries == 0 || !args.wants("matrix") {
        return Ok(());
    }
    let begun = Instant::now();
    let counts = meet_all(args).await?;
    report(&counts, comparison);
    let meetings = counts
        .values()
        .map(|count| count.times.answered())
        .sum::<u64>();
    let took = begun.elapsed().as_secs();
    comparison.remark(format!(
        "matrix: {meetings} meetings in {took} s, {} at once",
        args.at_once
    ));
    Ok(())
}

async fn meet_all(args: &Args) -> Result<BTreeMap<Key, Count>, Error> {
    let (_town, _workers, couples) = settle().await?;
    let (room, mut meetings) = (
        Arc::new(Semaphore::new(args.at_once.max(1))),
        JoinSet::new(),
    );
    let mut counts = BTreeMap::<Key, Count>::new();
    for number in 0..args.tries {
        for (&(first, second), couple) in &couples {
            for (at, transport) in TRANSPORTS.into_iter().enumerate() {
                let place = room.clone().acquire_owned().await?;
                let couple = couple.clone();
                meetings.spawn_local(async move {
                    let went = meet(&couple, transport).await;
                    drop(place);
                    ((at, first, second), went)
                });
                while let Some(done) = meetings.try_join_next() {
                    count(&mut counts, done?);
                }
            }
        }
        eprintln!("matrix: {} of {} rounds begun", number + 1, args.tries);
    }
    while let Some(done) = meetings.join_next().await {
        count(&mut counts, done?);
    }
    Ok(counts)
}

type Couples = BTreeMap<(usize, usize), Arc<Couple>>;

/// Two sites of each kind: one whose worker calls, one whose is called.
async fn settle() -> Result<(Town, Vec<[Worker; 2]>, Couples), Error> {
    let line = Line {
        delay: DELAY,
        ..Line::default()
    };
    let mut town = Town::new(&Line::plain()).await?;
    let mut workers = Vec::new();
    for kind in NatKind::ALL {
        let plan = NatPlan {
            conditions: line.clone(),
            is_plain: true,
            ..kind.into()
        };
        let sites = [
            town.internet.add_site(plan.clone())?,
            town.internet.add_site(plan)?,
        ];
        let name = |role| format!("{role}.{kind:?}").to_lowercase();
        let calls = Worker::begin(&town, sites[0].first_machine(), &name("a"), Lines::Tls).await?;
        workers.push([
            calls,
            Worker::begin(&town, sites[1].first_machine(), &name("b"), Lines::Tls).await?,
        ]);
    }
    let mut couples = BTreeMap::new();
    for first in 0..workers.len() {
        for second in first..workers.len() {
            couples.insert(
                (first, second),
                Arc::new(workers[first][0].with(&workers[second][1], &town)?),
            );
        }
    }
    Ok((town, workers, couples))
}

async fn meet(couple: &Couple, over: Transport) -> (Duration, Result<Went, Failure>) {
    let how = How::over(&[over]);
    match tokio::time::timeout(HANGS, couple.meet(&how, exchange)).await {
        Err(_) => (HANGS, Err(Failure::Timeout)),
        Ok(Ok([(one, after), (other, later)])) if one == other => (after.max(later), Ok(one)),
        Ok(Ok(_)) => (HANGS, Err(Failure::Body)),
        Ok(Err(error)) => {
            eprintln!("matrix, {over:?}: {error}");
            (HANGS, Err(Failure::Broken))
        }
    }
}

/// Both send, before it is known how the link goes and after, and look at what comes: how it went, and when all was there.
async fn exchange(link: P2pLink, calls: bool, begun: Instant) -> io::Result<(Went, Duration)> {
    let known = link.status().clone();
    let (read, mut write) = split(link);
    let writes = async {
        write.write_all(&bytes(calls, 0)).await?;
        write.flush().await?;
        let mut verdict = known.outcome.clone();
        let settled = verdict
            .wait_for(|verdict| *verdict != SearchOutcome::Searching)
            .await
            .map(|verdict| *verdict);
        let direct = matches!(settled, Ok(SearchOutcome::Direct { .. }));
        if direct {
            let mut places = known.paths.clone();
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
        write.write_all(&bytes(calls, 1)).await?;
        write.shutdown().await?;
        Ok::<_, io::Error>((write, if direct { Went::Direct } else { Went::Relay }))
    };
    let reads = async {
        let (mut read, mut came) = (read, Vec::new());
        read.read_to_end(&mut came).await?;
        let whole = came == [bytes(!calls, 0), bytes(!calls, 1)].concat();
        if whole {
            Ok((read, begun.elapsed()))
        } else {
            Err(io::Error::other("other bytes came than were sent"))
        }
    };
    let ((write, went), (read, after)) = tokio::try_join!(writes, reads)?;
    read.unsplit(write).close().await?;
    Ok((went, after))
}

fn bytes(calls: bool, piece: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(u64::from(calls) * 2 + piece as u64);
    std::iter::repeat_with(|| random.u8(..))
        .take(PIECES[piece])
        .collect()
}

fn count(
    counts: &mut BTreeMap<Key, Count>,
    (key, (took, went)): (Key, (Duration, Result<Went, Failure>)),
) {
    let count = counts.entry(key).or_default();
    match &went {
        Ok(Went::Direct) => count.direct += 1,
        Ok(Went::Relay) => count.relay += 1,
        Err(Failure::Timeout) => count.hung += 1,
        Err(_) => count.failed += 1,
    }
    count.slowest = count.slowest.max(took);
    count.times.add(went.map(|_| took));
}

fn report(counts: &BTreeMap<Key, Count>, comparison: &mut Comparison) {
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
            fell_back = fell_back.min((count.direct + count.relay) as f64 / all);
        }
        (lost, hung) = (lost + count.failed, hung + count.hung);
        if count.slowest > slowest.0 {
            slowest = (count.slowest, format!("{name}, {over:?}"));
        }
        let expected = if permitted { count.direct } else { count.relay };
        if expected as f64 != all {
            let of = format!(
                "{} direct, {} over the relay, {} failed, {} hung",
                count.direct, count.relay, count.failed, count.hung
            );
            comparison.remark(format!(
                "matrix, {over:?}, {name} ({}): {of}",
                if permitted {
                    "theory permits it"
                } else {
                    "theory forbids it"
                }
            ));
        }
        let place = if permitted { "direct" } else { "relay" };
        let sample = Sample::of(&count.times, Duration::from_secs(1), Duration::ZERO);
        comparison.measured(
            &format!("matrix, {over:?}, {place}"),
            &name,
            Measured::from(Sample { rps: 0.0, ..sample }),
        );
    }
    comparison.remark(format!(
        "matrix: the slowest meeting took {:.2} s: {}",
        slowest.0.as_secs_f64(),
        slowest.1
    ));
    let mut figure = |name: &str, value, better, goal| {
        comparison.figure(Ratio {
            name: name.to_owned(),
            value,
            better,
            goal,
        });
    };
    figure(
        "matrix, of pairs that theory permits the one that met directly least often: share",
        least,
        Better::Higher,
        0.99,
    );
    figure(
        "matrix, of other pairs the one whose bytes arrived least often: share",
        fell_back,
        Better::Higher,
        1.0,
    );
    figure(
        "matrix, meetings that failed",
        lost as f64,
        Better::Lower,
        0.0,
    );
    figure(
        "matrix, meetings that hung",
        hung as f64,
        Better::Lower,
        0.0,
    );
}
