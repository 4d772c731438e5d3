//! Bytes between two machines behind port-restricted NATs: over a punched link, over the relay, and
//! over plain TCP. Plain TCP uses the same routers, one of which has a manually opened port.

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

use super::PunchArgs;
use crate::compare::{BenchComparison, BetterDirection, RatioGoal, RoundSample};
use crate::p2p::fixture::{ControlTransport, RendezvousSetup};
use crate::p2p::stream::{TransferStats, transfer_bytes};
use crate::p2p::worker::{LinkOptions, NatWorker, WorkerPair};
use crate::remote::BenchError;

/// The manually opened port.
const OPENED_PORT: u16 = 9000;
/// Time limit for a direct connection on a busy machine.
const DIRECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Carriers of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ByteCarrier {
    Plain,
    Tls,
    Punched(Transport),
    Relay,
}

const BYTE_CARRIERS: [(ByteCarrier, &str); 5] = [
    (ByteCarrier::Plain, "plain TCP"),
    (ByteCarrier::Tls, "TLS over plain TCP"),
    (ByteCarrier::Punched(Tcp), "punched TCP"),
    (ByteCarrier::Punched(Udp), "punched UDP"),
    (ByteCarrier::Relay, "relay"),
];

/// Measures with and without a rate limit.
pub(super) async fn measure(
    args: &PunchArgs,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let caps = [
        (format!("throughput, {} Mbit/s", args.cap), Some(args.cap)),
        ("throughput, no cap".to_owned(), None),
    ];
    for (case, cap) in caps.into_iter().filter(|(case, _)| args.wants_case(case)) {
        let setup = ThroughputSetup::set_up(cap).await?;
        let names = BYTE_CARRIERS.map(|(_, name)| name);
        let one = async |index: usize| {
            setup
                .measure_carrier(BYTE_CARRIERS[index].0, args.megabytes)
                .await
        };
        comparison.measure_case(&case, &names, one).await?;
        let goal = |goal| RatioGoal {
            value: |row| row.rps,
            better: BetterDirection::Higher,
            goal,
        };
        let against = |under, goal_of, comparison: &mut BenchComparison| {
            let name = format!("{case}, punched TCP/{under}");
            comparison.add_ratio(&name, &case, "punched TCP", under, goal(goal_of));
        };
        against("TLS over plain TCP", 0.95, comparison);
        against("plain TCP", 0.95, comparison);
    }
    Ok(())
}

/// Limits a machine to this number of Mbit/s, by a token bucket at its only device.
pub(super) fn cap_rate(node: &LabNode, megabits: u64) -> io::Result<()> {
    let rate = format!("{megabits}mbit");
    let mut tc = Command::new("tc");
    // Room for a whole batch of segments, and for 20 ms of waiting: what a shaper in front of a machine has.
    tc.args([
        "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", &rate, "burst", "128kb", "latency",
        "20ms",
    ]);
    let output = node.run_program(&mut tc)?;
    let failure = || {
        io::Error::other(format!(
            "tc (iproute2) cannot limit the rate: {}",
            String::from_utf8_lossy(&output.stderr)
        ))
    };
    if output.status.success() {
        Ok(())
    } else {
        Err(failure())
    }
}

/// Two workers for all rounds.
pub(super) struct ThroughputSetup {
    worker_pair: WorkerPair,
    workers: [NatWorker; 2],
    pairs: [Arc<PeerTlsConfig>; 2],
    /// Address at which the second worker accepts connections without hole punching.
    opened: SocketAddr,
    _sites: [NatSite; 2],
    _fixture: RendezvousSetup,
}

impl ThroughputSetup {
    pub(super) async fn set_up(limit: Option<u64>) -> Result<Self, BenchError> {
        let line = Line::plain();
        let mut fixture = RendezvousSetup::new(&line).await?;
        let mut site = || {
            fixture.internet.add_site(NatPlan {
                conditions: line.clone(),
                is_plain: true,
                ..NatKind::PortRestricted.into()
            })
        };
        let sites = [site()?, site()?];
        for node in sites.iter().map(|site| &site.first_machine().node) {
            limit.map_or(Ok(()), |limit| cap_rate(node, limit))?;
        }
        sites[1].open_port(OPENED_PORT)?;
        let first = NatWorker::start_worker(
            &fixture,
            sites[0].first_machine(),
            "a",
            ControlTransport::Tls,
        )
        .await?;
        let second = NatWorker::start_worker(
            &fixture,
            sites[1].first_machine(),
            "b",
            ControlTransport::Tls,
        )
        .await?;
        let (worker_pair, pairs) = (
            first.pair_with(&second, &fixture)?,
            [
                first.peer_tls(&second, &fixture)?,
                second.peer_tls(&first, &fixture)?,
            ],
        );
        let opened = SocketAddr::new(sites[1].outside_address().into(), OPENED_PORT);
        Ok(Self {
            worker_pair,
            workers: [first, second],
            pairs,
            opened,
            _sites: sites,
            _fixture: fixture,
        })
    }

    pub(super) async fn measure_carrier(
        &self,
        carrier: ByteCarrier,
        megabytes: usize,
    ) -> Result<RoundSample, BenchError> {
        let [sender, receiver] = match carrier {
            ByteCarrier::Plain => self.transfer_plain(megabytes, false).await?,
            ByteCarrier::Tls => self.transfer_plain(megabytes, true).await?,
            ByteCarrier::Punched(transport) => self.transfer_p2p(megabytes, &[transport]).await?,
            ByteCarrier::Relay => self.transfer_p2p(megabytes, &[]).await?,
        };
        Ok(RoundSample::from_tally(
            &receiver.megabytes,
            receiver.took,
            sender.cpu + receiver.cpu,
        ))
    }

    async fn transfer_p2p(
        &self,
        megabytes: usize,
        over: &[Transport],
    ) -> Result<[TransferStats; 2], BenchError> {
        let (how, punches) = (LinkOptions::over_transports(over), !over.is_empty());
        let work = move |mut link: P2pLink, calls, _| async move {
            let known = link.status().clone();
            if punches {
                wait_direct(&mut link, known, calls).await?;
            }
            let seen = transfer_bytes(&mut link, calls, megabytes).await?;
            link.close().await?;
            Ok(seen)
        };
        Ok(self.worker_pair.run_session(&how, work).await?)
    }

    /// Transfers over the manually opened port.
    async fn transfer_plain(
        &self,
        megabytes: usize,
        tls: bool,
    ) -> Result<[TransferStats; 2], BenchError> {
        let [caller, callee] = &self.workers;
        let listener = callee
            .machine
            .run_in_node(TcpListener::bind(("0.0.0.0", OPENED_PORT)))
            .await?;
        let (to, [own, others]) = (self.opened, self.pairs.clone());
        let calls = caller.machine.run_in_node(async move {
            let stream = configure_stream(TcpStream::connect(to).await?)?;
            if !tls {
                return transfer_all(stream, true, megabytes).await;
            }
            let connector = TlsConnector::from(own.client_config().clone());
            transfer_all(
                connector.connect(own.server_name(), stream).await?,
                true,
                megabytes,
            )
            .await
        });
        let is_called = callee.machine.run_in_node(async move {
            let stream = configure_stream(listener.accept().await?.0)?;
            if !tls {
                return transfer_all(stream, false, megabytes).await;
            }
            transfer_all(
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

fn configure_stream(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn transfer_all(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    sends: bool,
    megabytes: usize,
) -> io::Result<TransferStats> {
    transfer_bytes(&mut stream, sends, megabytes).await
}

/// Exchanges bytes until both directions are direct: a path moves only during reads and writes.
async fn wait_direct(link: &mut P2pLink, known: LinkStatus, calls: bool) -> io::Result<()> {
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
        if begun.elapsed() > DIRECT_TIMEOUT
            || !matches!(
                verdict,
                SearchOutcome::Searching | SearchOutcome::Direct { .. }
            )
        {
            return Err(io::Error::other(format!(
                "no direct path was found: {verdict:?}"
            )));
        }
    }
}
