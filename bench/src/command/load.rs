//! `load`: requests to one URL.

use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, Uri};
use serde_json::json;
use tokio::time::Instant;

use super::measure::measure_cpu;
use super::{BenchOutcome, parse_rate, parse_seconds};
use crate::cpu::CpuSnapshot;
use crate::load::closed::{self, ConnectionReuse};
use crate::load::schedule::ArrivalSchedule;
use crate::load::{MeasureWindow, RequestTemplate, open};
use crate::tally::RequestTally;

/// Options of `load`.
#[derive(clap::Args)]
pub(crate) struct LoadArgs {
    /// Send requests to this URL, http://HOST:PORT/PATH
    #[arg(long)]
    url: Uri,

    /// Closed loop: set the number of callers, each waiting for its response before the next
    /// request
    #[arg(long, default_value_t = 32, value_name = "N", conflicts_with = "rate")]
    connections: usize,

    /// Open loop: send this number of requests per second, independent of earlier ones; latency
    /// counts from the due time
    #[arg(long, value_parser = parse_rate, value_name = "PER-SECOND")]
    rate: Option<f64>,

    /// Set the length of the measurement in seconds
    #[arg(long, default_value = "10", value_parser = parse_seconds)]
    duration: Duration,

    /// Set the warm-up before the measurement, in seconds
    #[arg(long, default_value = "1", value_parser = parse_seconds)]
    warm_up: Duration,

    /// Open a new connection for every request
    #[arg(long)]
    new_connection: bool,

    #[arg(long, default_value = "GET")]
    method: Method,

    /// Add a header field; may be repeated
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<String>,

    /// Send this body
    #[arg(long, default_value = "")]
    body: String,

    /// Report the CPU time of this process and its descendants; may be repeated
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,

    /// Set the number of threads of the load generator
    #[arg(long, default_value_t = 1, value_name = "N")]
    threads: usize,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the load. The exit code is 1 if a request failed.
pub(crate) fn run(args: &LoadArgs) -> BenchOutcome {
    let mut runtime = match args.threads {
        0 | 1 => tokio::runtime::Builder::new_current_thread(),
        // One thread by default: a second one helps only when it saturates a core.
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime
        .worker_threads(args.threads.max(1))
        .enable_all()
        .build()?;
    runtime.block_on(run_load(args))
}

async fn run_load(args: &LoadArgs) -> BenchOutcome {
    let template = request_template(args)?;
    let reuse = if args.new_connection {
        ConnectionReuse::Fresh
    } else {
        ConnectionReuse::KeepAlive
    };
    let (tally, cpu) = match args.rate {
        Some(rate) => {
            let (schedule, before) = (
                ArrivalSchedule::new(rate, args.duration),
                CpuSnapshot::read_now(&args.pid),
            );
            let done = open::run_open(&template, schedule, reuse, Instant::now()).await?;
            (
                open::tally_outcomes(&done),
                before.spent_until(&CpuSnapshot::read_now(&args.pid)),
            )
        }
        None => {
            let window = MeasureWindow::starting_after(args.warm_up, args.duration);
            measure_cpu(
                closed::run_closed(&template, args.connections, reuse, window),
                window,
                &args.pid,
            )
            .await
        }
    };
    print_result(args, &tally, cpu);
    Ok(if tally.failed_count() == 0 && tally.answered_count() > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn request_template(
    args: &LoadArgs,
) -> Result<RequestTemplate, Box<dyn std::error::Error + Send + Sync>> {
    let path = args.url.path_and_query().map_or("/", |path| path.as_str());
    let mut template = RequestTemplate::for_get(resolve_address(&args.url)?, path)?;
    if let Some(authority) = args.url.authority() {
        // The host header is the first one; the URL's name and not its resolved address belongs
        // there.
        template.headers[0].1 = HeaderValue::try_from(authority.as_str())?;
    }
    for header in &args.header {
        let (name, value) = header
            .split_once(':')
            .ok_or_else(|| format!("invalid --header {header:?}: expected NAME: VALUE"))?;
        template.headers.push((
            HeaderName::try_from(name.trim())?,
            HeaderValue::try_from(value.trim())?,
        ));
    }
    template.method = args.method.clone();
    template.body = args.body.clone().into();
    Ok(template)
}

/// Resolves the address of a URL.
pub(super) fn resolve_address(url: &Uri) -> Result<SocketAddr, String> {
    // No TLS here: the client is made to cost little.
    let host = url.host().filter(|_| url.scheme_str() == Some("http"));
    let host = host.ok_or_else(|| format!("invalid URL {url}: expected http://HOST:PORT/PATH"))?;
    // `Uri` leaves the brackets of IPv6 literals, which the resolver does not take.
    let place = (host.trim_matches(['[', ']']), url.port_u16().unwrap_or(80));
    let mut found = place
        .to_socket_addrs()
        .map_err(|error| format!("{host}: {error}"))?;
    found
        .next()
        .ok_or_else(|| format!("no address found for {host}"))
}

fn print_result(args: &LoadArgs, tally: &RequestTally, cpu: Duration) {
    let rps = tally.answered_count() as f64 / args.duration.as_secs_f64();
    let cpu_us = cpu.as_micros() as f64 / tally.answered_count().max(1) as f64;
    if args.json {
        let all = json!({
            "n": tally.answered_count(), "rps": rps, "p50_us": tally.latency_us(0.5), "p90_us": tally.latency_us(0.9), "p99_us": tally.latency_us(0.99),
            "p999_us": tally.latency_us(0.999), "max_us": tally.latency_us(1.0), "cpu_us_per_request": cpu_us,
            "failed": tally.failed_count(), "failures": tally.failures_by_kind(),
        });
        println!("{all}");
        return;
    }
    println!(
        "answered {} ({rps:.0}/s), failed {}",
        // After the summary, so that scripts find it on the first lines.
        tally.answered_count(),
        tally.failed_count()
    );
    let us = |quantile| tally.latency_us(quantile);
    println!(
        "latency µs: p50 {:.0}  p90 {:.0}  p99 {:.0}  p99.9 {:.0}  max {:.0}",
        us(0.5),
        us(0.9),
        us(0.99),
        us(0.999),
        us(1.0)
    );
    if !args.pid.is_empty() {
        println!("cpu: {cpu_us:.1} µs per request");
    }
    tally
        .failures_by_kind()
        .iter()
        .for_each(|(kind, count)| println!("{count} × {kind}"));
}
