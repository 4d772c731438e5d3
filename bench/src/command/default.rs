//! `default`: an unmodified function as the guide deploys it, beside nginx and Envoy in front of the
//! same handler, nginx in front of OpenFaaS's of-watchdog, and the handler alone.
//!
//! The rows count the CPU time of all processes, the handler's included. The rows
//! `… without handler` count what is in front of it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use http::Method;

use super::measure::{RateOptions, measure_cpu_without};
use super::{BenchOutcome, parse_seconds};
use crate::compare::{BenchComparison, BetterDirection, LoadSample, RatioGoal};
use crate::load::closed::ConnectionReuse;
use crate::load::{RequestTemplate, connection, epoll_client};
use crate::peers::envoy::{EnvoyProxy, find_envoy};
use crate::peers::nginx::NginxServer;
use crate::peers::of_watchdog::{OfWatchdog, find_of_watchdog};
use crate::peers::plain_handler::{DeployedHandler, HandlerLanguage, PlainHandler};
use crate::peers::{PeerProcess, count_cores};

/// Envoy in front of the handler. Left out if the program is missing.
const ENVOY: &str = "Envoy";
/// nginx in front of of-watchdog, OpenFaaS's way for an unmodified handler. Left out if the program
/// is missing.
const OF_WATCHDOG: &str = "nginx and of-watchdog";
const NEARPATH: &str = "nearpath";
const NEARPATH_ALONE: &str = "nearpath without handler";
/// The same with `nearpath.io/loopback: sockmap`.
const NEARPATH_SOCKMAP: &str = "nearpath by sockmap";
const VARIANTS: [&str; 8] = [
    "handler alone",
    "nginx",
    NEARPATH,
    NEARPATH_SOCKMAP,
    ENVOY,
    OF_WATCHDOG,
    "nginx without handler",
    NEARPATH_ALONE,
];
/// Path of the requests.
const PATH: &str = "/function/handler";
/// Length of a request's body, and of its response.
const BODY_BYTES: usize = 100;

/// Options of `default`.
#[derive(clap::Args)]
pub(crate) struct DefaultArgs {
    #[command(flatten)]
    measure: RateOptions,

    /// Set the numbers of concurrent connections, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,32")]
    connections: Vec<usize>,

    /// Set the warm-up before a measurement of nearpath, in seconds: its placement settles under load
    #[arg(long, default_value = "9", value_parser = parse_seconds)]
    settle: Duration,

    /// Measure handlers in these languages
    #[arg(long, value_delimiter = ',', default_value = "c,go,python", value_enum)]
    handlers: Vec<HandlerLanguage>,
}

/// Programs of peers that may be missing.
struct OptionalPrograms {
    envoy: Option<PathBuf>,
    of_watchdog: Option<PathBuf>,
}

impl OptionalPrograms {
    /// Searches the programs, and prints which variants are left out and why.
    fn find(comparison: &mut BenchComparison) -> Self {
        let mut found = |variant: &str, program: io::Result<PathBuf>| {
            let missing = |error| {
                comparison.add_remark(format!("The variant \"{variant}\" is left out: {error}"));
            };
            program.map_err(missing).ok()
        };
        Self {
            envoy: found(ENVOY, find_envoy()),
            of_watchdog: found(OF_WATCHDOG, find_of_watchdog()),
        }
    }

    /// Returns the variants whose programs are there.
    fn variants(&self) -> Vec<&'static str> {
        let is_there = |variant: &&str| match *variant {
            ENVOY => self.envoy.is_some(),
            OF_WATCHDOG => self.of_watchdog.is_some(),
            _ => true,
        };
        VARIANTS.into_iter().filter(is_there).collect()
    }
}

/// Everything that is measured with one handler.
struct MeasuredPeers {
    handler: PeerProcess,
    nginx: NginxServer,
    envoy: Option<EnvoyProxy>,
    of_watchdog: Option<OfWatchdog>,
    nearpath: DeployedHandler,
    nearpath_sockmap: DeployedHandler,
}

/// Runs the comparison. The exit code is 1 if a goal is missed.
pub(crate) async fn run(args: DefaultArgs) -> BenchOutcome {
    let mut comparison = BenchComparison::new("default", args.measure.rounds);
    let programs = OptionalPrograms::find(&mut comparison);
    let variants = programs.variants();
    for &language in &args.handlers {
        // Dropped before those of the next language: the port of of-watchdog's metrics is fixed.
        let peers = MeasuredPeers::start(language, &programs).await?;
        for (connection_name, reuse) in [
            ("kept", ConnectionReuse::KeepAlive),
            ("new", ConnectionReuse::Fresh),
        ] {
            for &callers in &args.connections {
                let case = case_name(language, connection_name, callers);
                let one = async |variant: usize| {
                    peers
                        .measure(variants[variant], callers, reuse, &args)
                        .await
                };
                comparison.measure_loads(&case, &variants, one).await?;
                add_ratios(&mut comparison, language, connection_name, callers);
            }
        }
    }
    Ok(match comparison.finish()? {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn case_name(language: HandlerLanguage, connections: &str, callers: usize) -> String {
    format!("{}, {connections} {callers}", language.name())
}

impl MeasuredPeers {
    async fn start(language: HandlerLanguage, programs: &OptionalPrograms) -> io::Result<Self> {
        let built = PlainHandler::build(language)?;
        let handler = built.start().await?;
        // As many workers as the gateway has threads.
        let workers = count_cores();
        let envoy = match &programs.envoy {
            Some(program) => Some(EnvoyProxy::start(program, handler.addr, workers, PATH).await?),
            None => None,
        };
        let of_watchdog = match &programs.of_watchdog {
            Some(program) => Some(OfWatchdog::start(program, &built, PATH).await?),
            None => None,
        };
        let peers = Self {
            nginx: NginxServer::start(handler.addr, workers, PATH).await?,
            envoy,
            of_watchdog,
            nearpath: built.deploy().await?,
            nearpath_sockmap: built.deploy_by_sockmap().await?,
            handler,
        };
        peers.check_responses(&programs.variants()).await?;
        peers.check_redirection().await?;
        Ok(peers)
    }

    /// Checks that each variant responds with the body of a request. The load counts any success.
    async fn check_responses(&self, variants: &[&str]) -> io::Result<()> {
        for variant in variants {
            let template = request_to(self.target(variant).0)?;
            let answer = connection::send_once(template.addr, template.build_request())
                .await
                .and_then(connection::LoadResponse::require_success)
                .map_err(|failure| io::Error::other(format!("{variant}: {failure}")))?;
            if answer.body != template.body {
                return Err(io::Error::other(format!(
                    "{variant}: the response is not the body of the request"
                )));
            }
        }
        Ok(())
    }

    /// Checks that sockmap is used. Without support, the node falls back to TCP.
    async fn check_redirection(&self) -> io::Result<()> {
        let name = "nearpath_loopback_redirected_messages_total";
        match self.nearpath_sockmap.server().read_total(name).await? {
            0 => Err(io::Error::other(
                "sockmap redirects nothing: run `nearpath doctor`",
            )),
            _ => Ok(()),
        }
    }

    /// Returns the address of a variant, its processes, and the one whose time does not count.
    fn target(&self, variant: &str) -> (SocketAddr, Vec<u32>, Option<u32>) {
        let (handler, nginx) = (self.handler.pid(), &self.nginx.peer);
        let (nearpath, deployed) = (self.nearpath.server(), self.nearpath.handler_pid());
        match (variant, &self.envoy, &self.of_watchdog) {
            ("nginx", ..) => (nginx.addr, vec![nginx.pid(), handler], None),
            ("nginx without handler", ..) => (nginx.addr, vec![nginx.pid()], None),
            (NEARPATH, ..) => (nearpath.addr(), vec![nearpath.pid()], None),
            (NEARPATH_SOCKMAP, ..) => {
                let server = self.nearpath_sockmap.server();
                (server.addr(), vec![server.pid()], None)
            }
            (NEARPATH_ALONE, ..) => (nearpath.addr(), vec![nearpath.pid()], Some(deployed)),
            (ENVOY, Some(envoy), _) => (envoy.peer.addr, vec![envoy.peer.pid(), handler], None),
            // The handler is of-watchdog's child.
            (OF_WATCHDOG, _, Some(peer)) => (peer.nginx.peer.addr, peer.process_ids(), None),
            _ => (self.handler.addr, vec![handler], None),
        }
    }

    async fn measure(
        &self,
        variant: &str,
        callers: usize,
        reuse: ConnectionReuse,
        args: &DefaultArgs,
    ) -> io::Result<LoadSample> {
        let (addr, pids, without) = self.target(variant);
        let template = request_to(addr)?;
        let window = match variant {
            NEARPATH | NEARPATH_ALONE | NEARPATH_SOCKMAP => {
                args.measure.start_window_after(args.settle)
            }
            _ => args.measure.start_window(),
        };
        let load = epoll_client::run(&template, callers, reuse, window);
        let (loaded, cpu) = measure_cpu_without(load, window, &pids, without).await;
        Ok(LoadSample::from_load(&loaded?, window, cpu))
    }
}

fn request_to(addr: SocketAddr) -> io::Result<RequestTemplate> {
    Ok(RequestTemplate {
        method: Method::POST,
        body: Bytes::from_static(&[b'x'; BODY_BYTES]),
        ..RequestTemplate::for_get(addr, PATH).map_err(io::Error::other)?
    })
}

/// Adds the goals of a case.
fn add_ratios(
    comparison: &mut BenchComparison,
    language: HandlerLanguage,
    connections: &str,
    callers: usize,
) {
    let case = case_name(language, connections, callers);
    let per_cpu = |goal| RatioGoal {
        value: |row| 1e6 / row.cpu_us_per_request,
        better: BetterDirection::Higher,
        goal,
    };
    let all_goal = match (language, connections) {
        (HandlerLanguage::C, "kept") => 1.25,
        _ => 1.1,
    };
    if callers > 1 {
        comparison.add_ratio(
            &format!("requests per CPU second, all processes, {case}, sockmap/TCP"),
            &case,
            NEARPATH_SOCKMAP,
            NEARPATH,
            per_cpu(1.0),
        );
    }
    let mut add = |name: &str, suffix: &str, goal| {
        comparison.add_ratio(
            &format!("{name}, {case}, nearpath/nginx"),
            &case,
            &format!("nearpath{suffix}"),
            &format!("nginx{suffix}"),
            goal,
        );
    };
    if callers > 1 {
        add(
            "requests per CPU second, all processes",
            "",
            per_cpu(all_goal),
        );
        if connections == "kept" {
            let name = "requests per CPU second, without handler";
            add(name, " without handler", per_cpu(1.3));
        }
        add("p99", "", latency(|row| row.p99_us));
    } else {
        add("p50", "", latency(|row| row.p50_us));
    }
}

fn latency(value: fn(&crate::compare::ReportRow) -> f64) -> RatioGoal {
    RatioGoal {
        value,
        better: BetterDirection::Lower,
        goal: 1.0,
    }
}
