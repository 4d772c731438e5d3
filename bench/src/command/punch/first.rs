//! How soon bytes flow: from the moment at which both workers have their lines and one calls, until the other has read the first byte, over
//! whatever it came, and the first one that came directly.

use std::io;
use std::time::{Duration, Instant};

use nearpath_p2p::Transport::{Tcp, Udp};
use nearpath_p2p::driver::SearchOutcome;
use nearpath_p2p::link::P2pLink;
use nearpath_p2p::migrate::StreamPath;
use nearpath_testkit::lab::nat::{NatKind, NatPlan};
use tokio::io::{AsyncReadExt, AsyncWriteExt, split};

use super::{Args, Trips};
use crate::compare::{Better, Comparison, Ratio, Sample};
use crate::p2p::town::{Lines, Town};
use crate::p2p::worker::{Couple, How, Worker};
use crate::remote::Error;
use crate::tally::Tally;

/// Who meets: the first one calls.
const KINDS: [[NatKind; 2]; 4] = [
    [NatKind::None, NatKind::None],
    [NatKind::PortRestricted, NatKind::PortRestricted],
    [NatKind::Symmetric, NatKind::Restricted],
    RELAYED,
];
/// No direct way is waited for where there is none.
const RELAYED: [NatKind; 2] = [NatKind::Symmetric, NatKind::Symmetric];
/// The lines to the rendezvous.
const LINES: [(Lines, &str); 2] = [(Lines::Tls, "wss"), (Lines::Plain, "ws")];
/// What is sent over whatever there is, once there is a direct way, and at the end.
const FIRST: u8 = b'f';
const DIRECT: u8 = b'd';

/// All kinds, so far apart.
pub(super) async fn measure(
    args: &Args,
    trips: Trips,
    comparison: &mut Comparison,
) -> Result<(), Error> {
    for kinds in KINDS {
        let case =
            |what: &str| format!("first byte{what}, {:?} + {:?}, {trips}", kinds[0], kinds[1]);
        if !args.wants(&case("")) {
            continue;
        }
        let names = LINES.map(|(_, name)| name);
        let stage = Stage::set(kinds, trips).await?;
        let mut direct = vec![Vec::new(); LINES.len()];
        let one = async |index: usize| {
            let times = stage.times(index, args.meetings, kinds != RELAYED).await?;
            direct[index].push(told(times.iter().filter_map(|times| times.direct)));
            Ok::<_, Error>(told(times.iter().map(|times| times.first)))
        };
        comparison.case(&case(""), &names, one).await?;
        if kinds != RELAYED {
            let mut direct = direct.into_iter().map(Vec::into_iter).collect::<Vec<_>>();
            let again = async |index: usize| {
                Ok::<_, Error>(direct[index].next().unwrap_or_else(|| told([].into_iter())))
            };
            comparison.case(&case(" directly"), &names, again).await?;
        }
        let budget = trips.rendezvous * 3 + trips.peers * 2;
        for name in names {
            let p50 = comparison
                .value(&case(""), name, |row| row.p50_us)
                .unwrap_or(f64::NAN);
            let name = format!(
                "p50, {}, {name}, by 3 round trips to the rendezvous + 2 between the peers",
                case("")
            );
            let value = p50 / 1e6 / budget.as_secs_f64();
            comparison.figure(Ratio {
                name,
                value,
                better: Better::Lower,
                goal: 1.0,
            });
        }
    }
    Ok(())
}

fn told(times: impl Iterator<Item = Duration>) -> Sample {
    let (mut tally, mut all) = (Tally::default(), Duration::ZERO);
    for time in times {
        all += time;
        tally.add(Ok(time));
    }
    Sample::of(&tally, all.max(Duration::from_nanos(1)), Duration::ZERO)
}

/// What one meeting took.
#[derive(Debug, Clone, Copy)]
struct Times {
    first: Duration,
    /// `None`: the relay it was.
    direct: Option<Duration>,
}

/// A couple for each kind of line.
struct Stage {
    couples: Vec<Couple>,
    _workers: Vec<Worker>,
    _town: Town,
}

impl Stage {
    async fn set(kinds: [NatKind; 2], trips: Trips) -> Result<Self, Error> {
        let mut town = Town::new(&trips.line()).await?;
        let plan = |kind: NatKind| NatPlan {
            conditions: trips.site(),
            is_plain: true,
            ..kind.into()
        };
        let sites = [
            town.internet.add_site(plan(kinds[0]))?,
            town.internet.add_site(plan(kinds[1]))?,
        ];
        let (mut couples, mut workers) = (Vec::new(), Vec::new());
        for (lines, name) in LINES {
            let first =
                Worker::begin(&town, sites[0].first_machine(), &format!("a.{name}"), lines).await?;
            let second =
                Worker::begin(&town, sites[1].first_machine(), &format!("b.{name}"), lines).await?;
            couples.push(first.with(&second, &town)?);
            workers.extend([first, second]);
        }
        Ok(Self {
            couples,
            _workers: workers,
            _town: town,
        })
    }

    async fn times(&self, lines: usize, meetings: usize, waits: bool) -> Result<Vec<Times>, Error> {
        let mut all = Vec::new();
        for _ in 0..meetings {
            let how = How::over(&[Tcp, Udp]);
            let work = move |link, calls, begun| async move {
                if calls {
                    speak(link, waits).await.map(|()| None)
                } else {
                    listen(link, begun).await.map(Some)
                }
            };
            let [_, times] = self.couples[lines].meet(&how, work).await?;
            all.extend(times);
        }
        Ok(all)
    }
}

/// A byte at once, and another one when there is a direct way, or none for good. What the peer answers is read meanwhile: a way moves when somebody
/// reads or writes.
async fn speak(link: P2pLink, waits: bool) -> io::Result<()> {
    let known = link.status().clone();
    let (mut read, mut write) = split(link);
    write.write_all(&[FIRST]).await?;
    write.flush().await?;
    let says = async {
        let (mut places, mut verdict) = (known.paths.clone(), known.outcome.clone());
        tokio::select! {
            () = std::future::ready(()), if !waits => (),
            moved = places.wait_for(|places| places.outgoing == StreamPath::Direct) => drop(moved),
            none = verdict.wait_for(|verdict| matches!(verdict, SearchOutcome::Relayed(_) | SearchOutcome::Failed(_))) => drop(none),
        }
        let direct = places.borrow().outgoing == StreamPath::Direct;
        write
            .write_all(if direct { &[DIRECT] } else { &[FIRST] })
            .await?;
        write.shutdown().await?;
        Ok::<_, io::Error>(write)
    };
    let (write, _) = tokio::try_join!(says, async { read.read_u8().await })?;
    read.unsplit(write).close().await
}

async fn listen(mut link: P2pLink, begun: Instant) -> io::Result<Times> {
    let mut times = Times {
        first: Duration::ZERO,
        direct: None,
    };
    if link.read_u8().await? == FIRST {
        times.first = begun.elapsed();
    }
    if link.read_u8().await? == DIRECT {
        times.direct = Some(begun.elapsed());
    }
    link.write_all(b"!").await?;
    link.close().await?;
    Ok(times)
}
