//! Bytes between two machines behind port-restricted NATs: over a punched link, over the relay, and over plain TCP through the same routers,
//! one of which has a port opened by hand.

use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearpath_p2p::Transport::{self, Tcp, Udp};
use nearpath_p2p::driver::SearchOutcome;
use nearpath_p2p::link::{LinkStatus, P2pLink};
use nearpath_p2p::migrate::{StreamPath, StreamPaths};
use nearpath_testkit::lab::nat::{NatKind, NatPlan, NatSite};
use nearpath_testkit::lab::{LabNode, LinkConditions as Line};
use nearpath_wire::p2p_tls::PeerTlsConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::Args;
use crate::compare::{Better, Comparison, Goal, Sample};
use crate::p2p::stream::{Seen, transfer};
use crate::p2p::town::{Lines, Town};
use crate::p2p::worker::{Couple, How, Worker};
use crate::remote::Error;

/// The port that is opened by hand.
const PORT: u16 = 9000;
/// A direct connection may take so long, on a machine that does other things.
const PATIENCE: Duration = Duration::from_secs(10);

/// What carries the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Plain,
    Tls,
    Punched(Transport),
    Relay,
}

const WAYS: [(Way, &str); 5] = [
    (Way::Plain, "plain TCP"),
    (Way::Tls, "TLS over plain TCP"),
    (Way::Punched(Tcp), "punched TCP"),
    (Way::Punched(Udp), "punched UDP"),
    (Way::Relay, "relay"),
];

/// With the cap and without.
pub(super) async fn measure(args: &Args, comparison: &mut Comparison) -> Result<(), Error> {
    let caps = [
        (format!("throughput, {} Mbit/s", args.cap), Some(args.cap)),
        ("throughput, no cap".to_owned(), None),
    ];
    for (case, cap) in caps.into_iter().filter(|(case, _)| args.wants(case)) {
        let stage = Stage::set(cap).await?;
        let names = WAYS.map(|(_, name)| name);
        let one = async |index: usize| stage.carry(WAYS[index].0, args.megabytes).await;
        comparison.case(&case, &names, one).await?;
        let goal = |goal| Goal {
            value: |row| row.rps,
            better: Better::Higher,
            goal,
        };
        let against = |under, goal_of, comparison: &mut Comparison| {
            let name = format!("{case}, punched TCP/{under}");
            comparison.ratio(&name, &case, "punched TCP", under, goal(goal_of));
        };
        against("TLS over plain TCP", 0.95, comparison);
        against("plain TCP", 0.95, comparison);
    }
    Ok(())
}

/// Has a machine send no more than so many Mbit/s, by a token bucket at its only device.
pub(super) fn cap(node: &LabNode, megabits: u64) -> io::Result<()> {
    let rate = format!("{megabits}mbit");
    let mut tc = Command::new("tc");
    // Room for a whole batch of segments, and for 20 ms of waiting: what a shaper in front of a machine has.
    tc.args([
        "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", &rate, "burst", "128kb", "latency",
        "20ms",
    ]);
    let output = node.run_program(&mut tc)?;
    let told = || {
        io::Error::other(format!(
            "tc (iproute2) does not cap a rate: {}",
            String::from_utf8_lossy(&output.stderr)
        ))
    };
    if output.status.success() {
        Ok(())
    } else {
        Err(told())
    }
}

/// Two workers, who are there for all rounds.
pub(super) struct Stage {
    couple: Couple,
    workers: [Worker; 2],
    pairs: [Arc<PeerTlsConfig>; 2],
    /// Where the second one is reached without punching.
    opened: SocketAddr,
    _sites: [NatSite; 2],
    _town: Town,
}

impl Stage {
    pub(super) async fn set(limit: Option<u64>) -> Result<Self, Error> {
        let line = Line::plain();
        let mut town = Town::new(&line).await?;
        let mut site = || {
            town.internet.add_site(NatPlan {
                conditions: line.clone(),
                is_plain: true,
                ..NatKind::PortRestricted.into()
            })
        };
        let sites = [site()?, site()?];
        for node in sites.iter().map(|site| &site.first_machine().node) {
            limit.map_or(Ok(()), |limit| cap(node, limit))?;
        }
        sites[1].open_port(PORT)?;
        let first = Worker::begin(&town, sites[0].first_machine(), "a", Lines::Tls).await?;
        let second = Worker::begin(&town, sites[1].first_machine(), "b", Lines::Tls).await?;
        let (couple, pairs) = (
            first.with(&second, &town)?,
            [first.pair(&second, &town)?, second.pair(&first, &town)?],
        );
        let opened = SocketAddr::new(sites[1].outside_address().into(), PORT);
        Ok(Self {
            couple,
            workers: [first, second],
            pairs,
            opened,
            _sites: sites,
            _town: town,
        })
    }

    pub(super) async fn carry(&self, way: Way, megabytes: usize) -> Result<Sample, Error> {
        let [sender, receiver] = match way {
            Way::Plain => self.plainly(megabytes, false).await?,
            Way::Tls => self.plainly(megabytes, true).await?,
            Way::Punched(transport) => self.met(megabytes, &[transport]).await?,
            Way::Relay => self.met(megabytes, &[]).await?,
        };
        Ok(Sample::of(
            &receiver.megabytes,
            receiver.took,
            sender.cpu + receiver.cpu,
        ))
    }

    async fn met(&self, megabytes: usize, over: &[Transport]) -> Result<[Seen; 2], Error> {
        let (how, punches) = (How::over(over), !over.is_empty());
        let work = move |mut link: P2pLink, calls, _| async move {
            let known = link.status().clone();
            if punches {
                until_direct(&mut link, known, calls).await?;
            }
            let seen = transfer(&mut link, calls, megabytes).await?;
            link.close().await?;
            Ok(seen)
        };
        Ok(self.couple.meet(&how, work).await?)
    }

    /// Over the port that was opened.
    async fn plainly(&self, megabytes: usize, tls: bool) -> Result<[Seen; 2], Error> {
        let [caller, callee] = &self.workers;
        let listener = callee
            .machine
            .run(TcpListener::bind(("0.0.0.0", PORT)))
            .await?;
        let (to, [own, others]) = (self.opened, self.pairs.clone());
        let calls = caller.machine.run(async move {
            let stream = prepared(TcpStream::connect(to).await?)?;
            if !tls {
                return to_the_end(stream, true, megabytes).await;
            }
            let connector = TlsConnector::from(own.client_config().clone());
            to_the_end(
                connector.connect(own.server_name(), stream).await?,
                true,
                megabytes,
            )
            .await
        });
        let is_called = callee.machine.run(async move {
            let stream = prepared(listener.accept().await?.0)?;
            if !tls {
                return to_the_end(stream, false, megabytes).await;
            }
            to_the_end(
                TlsAcceptor::from(others.server_config().clone())
                    .accept(stream)
                    .await?,
                false,
                megabytes,
            )
            .await
        });
        let (caller, callee) = tokio::try_join!(calls, is_called)?;
        Ok([caller, callee])
    }
}

fn prepared(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn to_the_end(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    sends: bool,
    megabytes: usize,
) -> io::Result<Seen> {
    transfer(&mut stream, sends, megabytes).await
}

/// A word to and fro, until both sides' ways have moved: a way moves when it is read and written.
async fn until_direct(link: &mut P2pLink, known: LinkStatus, calls: bool) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        let heard = !calls && link.read_u8().await? == 1;
        let moved = *known.paths.borrow()
            == StreamPaths {
                outgoing: StreamPath::Direct,
                incoming: StreamPath::Direct,
            };
        let done = moved && (calls || heard);
        link.write_u8(u8::from(done)).await?;
        link.flush().await?;
        if if calls {
            link.read_u8().await? == 1
        } else {
            done
        } {
            return Ok(());
        }
        let verdict = *known.outcome.borrow();
        if begun.elapsed() > PATIENCE
            || !matches!(
                verdict,
                SearchOutcome::Searching | SearchOutcome::Direct { .. }
            )
        {
            return Err(io::Error::other(format!(
                "no direct way was found: {verdict:?}"
            )));
        }
    }
}
