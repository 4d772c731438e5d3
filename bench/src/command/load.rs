//! `load`: requests to one URL.

use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, Uri};
use serde_json::json;
use tokio::time::Instant;

use super::measure::measured;
use super::{Outcome, rate, seconds};
use crate::cpu::Moment;
use crate::load::closed::{self, Reuse};
use crate::load::schedule::Schedule;
use crate::load::{Template, Window, open};
use crate::tally::Tally;

/// Options of `load`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to: http://HOST:PORT/PATH
    #[arg(long)]
    url: Uri,

    /// Callers of the closed loop, each waiting for its answer before it asks again
    #[arg(long, default_value_t = 32, value_name = "N", conflicts_with = "rate")]
    connections: usize,

    /// Open loop: so many requests a second, whatever became of the earlier ones; latency counts from when each was due
    #[arg(long, value_parser = rate, value_name = "PER-SECOND")]
    rate: Option<f64>,

    /// How long to count, in seconds
    #[arg(long, default_value = "10", value_parser = seconds)]
    duration: Duration,

    /// How long to run before counting, in seconds (closed loop)
    #[arg(long, default_value = "1", value_parser = seconds)]
    warm_up: Duration,

    /// A new connection for every request
    #[arg(long)]
    new_connection: bool,

    #[arg(long, default_value = "GET")]
    method: Method,

    /// A header field; may be given more than once
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<String>,

    /// The request's body
    #[arg(long, default_value = "")]
    body: String,

    /// Report the CPU time of this process and its descendants; may be given more than once
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,

    /// Threads of the load generator
    #[arg(long, default_value_t = 1, value_name = "N")]
    threads: usize,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Exit code 1 when any request failed.
pub(crate) fn run(args: &Args) -> Outcome {
    let mut runtime = match args.threads {
        0 | 1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime
        .worker_threads(args.threads.max(1))
        .enable_all()
        .build()?;
    runtime.block_on(measure(args))
}

async fn measure(args: &Args) -> Outcome {
    let template = template(args)?;
    let reuse = if args.new_connection {
        Reuse::Fresh
    } else {
        Reuse::KeepAlive
    };
    let (tally, cpu) = match args.rate {
        Some(rate) => {
            let (schedule, before) = (Schedule::new(rate, args.duration), Moment::now(&args.pid));
            let done = open::run(&template, schedule, reuse, Instant::now()).await?;
            (open::tally(&done), before.until(&Moment::now(&args.pid)))
        }
        None => {
            let window = Window::after(args.warm_up, args.duration);
            measured(
                closed::run(&template, args.connections, reuse, window),
                window,
                &args.pid,
            )
            .await
        }
    };
    print(args, &tally, cpu);
    Ok(if tally.failed() == 0 && tally.answered() > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn template(args: &Args) -> Result<Template, Box<dyn std::error::Error + Send + Sync>> {
    let path = args.url.path_and_query().map_or("/", |path| path.as_str());
    let mut template = Template::get(address(&args.url)?, path)?;
    if let Some(authority) = args.url.authority() {
        template.headers[0].1 = HeaderValue::try_from(authority.as_str())?;
    }
    for header in &args.header {
        let (name, value) = header
            .split_once(':')
            .ok_or_else(|| format!("--header {header:?} has no ':'"))?;
        template.headers.push((
            HeaderName::try_from(name.trim())?,
            HeaderValue::try_from(value.trim())?,
        ));
    }
    template.method = args.method.clone();
    template.body = args.body.clone().into();
    Ok(template)
}

/// Where a URL leads.
pub(super) fn address(url: &Uri) -> Result<SocketAddr, String> {
    let host = url.host().filter(|_| url.scheme_str() == Some("http"));
    let host = host.ok_or_else(|| format!("{url} is not http://HOST:PORT/PATH"))?;
    let place = (host.trim_matches(['[', ']']), url.port_u16().unwrap_or(80));
    let mut found = place
        .to_socket_addrs()
        .map_err(|error| format!("{host}: {error}"))?;
    found.next().ok_or_else(|| format!("{host} has no address"))
}

fn print(args: &Args, tally: &Tally, cpu: Duration) {
    let rps = tally.answered() as f64 / args.duration.as_secs_f64();
    let cpu_us = cpu.as_micros() as f64 / tally.answered().max(1) as f64;
    if args.json {
        let all = json!({
            "n": tally.answered(), "rps": rps, "p50_us": tally.us(0.5), "p90_us": tally.us(0.9), "p99_us": tally.us(0.99),
            "p999_us": tally.us(0.999), "max_us": tally.us(1.0), "cpu_us_per_request": cpu_us,
            "failed": tally.failed(), "failures": tally.failures(),
        });
        println!("{all}");
        return;
    }
    println!(
        "answered {} ({rps:.0}/s), failed {}",
        tally.answered(),
        tally.failed()
    );
    let us = |quantile| tally.us(quantile);
    println!(
        "latency µs: p50 {:.0}  p90 {:.0}  p99 {:.0}  p99.9 {:.0}  max {:.0}",
        us(0.5),
        us(0.9),
        us(0.99),
        us(0.999),
        us(1.0)
    );
    if !args.pid.is_empty() {
        println!("cpu: {cpu_us:.1} µs a request");
    }
    tally
        .failures()
        .iter()
        .for_each(|(kind, count)| println!("{count} × {kind}"));
}
