//! `default`: an unmodified function as the guide deploys it, beside nginx in front of the same
//! handler, and the handler alone.
//!
//! `nginx` and `nearpath` count the CPU time of all processes, the handler's included. The rows
//! `… without handler` count what is in front of it.

use std::io;
use std::process::ExitCode;

use bytes::Bytes;
use http::Method;

use super::BenchOutcome;
use super::measure::{RateOptions, measure_cpu_without};
use crate::compare::{BenchComparison, BetterDirection, LoadSample, RatioGoal};
use crate::load::closed::ConnectionReuse;
use crate::load::{RequestTemplate, epoll_client};
use crate::peers::nginx::NginxServer;
use crate::peers::plain_handler::{DeployedHandler, HandlerLanguage, PlainHandler};
use crate::peers::{PeerProcess, count_cores};

const VARIANTS: [&str; 5] = [
    "handler alone",
    "nginx",
    "nearpath",
    "nginx without handler",
    "nearpath without handler",
];
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

    /// Measure handlers in these languages
    #[arg(long, value_delimiter = ',', default_value = "c,go,python", value_enum)]
    handlers: Vec<HandlerLanguage>,
}

/// Everything that is measured with one handler.
struct MeasuredPeers {
    handler: PeerProcess,
    nginx: NginxServer,
    nearpath: DeployedHandler,
}

/// Runs the comparison. The exit code is 1 if a goal is missed.
pub(crate) async fn run(args: DefaultArgs) -> BenchOutcome {
    let mut comparison = BenchComparison::new("default", args.measure.rounds);
    for &language in &args.handlers {
        let peers = MeasuredPeers::start(language).await?;
        for (connection_name, reuse) in [
            ("kept", ConnectionReuse::KeepAlive),
            ("new", ConnectionReuse::Fresh),
        ] {
            for &callers in &args.connections {
                let case = case_name(language, connection_name, callers);
                let one = async |variant| peers.measure(variant, callers, reuse, &args).await;
                comparison.measure_loads(&case, &VARIANTS, one).await?;
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
    async fn start(language: HandlerLanguage) -> io::Result<Self> {
        let built = PlainHandler::build(language)?;
        let handler = built.start().await?;
        Ok(Self {
            // As many workers as the gateway has threads.
            nginx: NginxServer::start(handler.addr, count_cores(), "/function/handler").await?,
            nearpath: built.deploy().await?,
            handler,
        })
    }

    async fn measure(
        &self,
        variant: usize,
        callers: usize,
        reuse: ConnectionReuse,
        args: &DefaultArgs,
    ) -> io::Result<LoadSample> {
        let (handler, nginx) = (self.handler.pid(), self.nginx.peer.pid());
        let (nearpath, deployed) = (self.nearpath.server(), self.nearpath.handler_pid());
        let (addr, pids, without) = match VARIANTS[variant] {
            "nginx" => (self.nginx.peer.addr, vec![nginx, handler], None),
            "nginx without handler" => (self.nginx.peer.addr, vec![nginx], None),
            "nearpath" => (nearpath.addr(), vec![nearpath.pid()], None),
            "nearpath without handler" => (nearpath.addr(), vec![nearpath.pid()], Some(deployed)),
            _ => (self.handler.addr, vec![handler], None),
        };
        let template = RequestTemplate::for_get(addr, "/function/handler");
        let template = RequestTemplate {
            method: Method::POST,
            body: Bytes::from_static(&[b'x'; BODY_BYTES]),
            ..template.map_err(io::Error::other)?
        };
        let window = args.measure.start_window();
        let load = epoll_client::run(&template, callers, reuse, window);
        let (loaded, cpu) = measure_cpu_without(load, window, &pids, without).await;
        Ok(LoadSample::from_load(&loaded?, window, cpu))
    }
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
