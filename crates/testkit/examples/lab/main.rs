//! Measures a link of the lab: how exact its delay is, its throughput and its CPU cost. Needs root.
//!
//! `cargo run -p nearpath-testkit --example lab -- --delay 0.5ms`

mod report;
mod traffic;

use std::io;
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use nearpath_testkit::lab::{LinkConditions, NetworkLab};

/// Connect two nodes by a link, send packets and bytes through it, and print measurements.
#[derive(Parser)]
struct Args {
    /// One-way delay, such as 0.5ms or 300us; several separated by commas give one row each
    #[arg(long, value_delimiter = ',', default_value = "0ms,0.5ms,1ms,2ms,3ms", value_parser = parse_duration)]
    delay: Vec<Duration>,
    /// Maximum that is added to the delay
    #[arg(long, default_value = "0ms", value_parser = parse_duration)]
    jitter: Duration,
    /// Share of packets lost, 0 to 1.
    #[arg(long, default_value_t = 0.0)]
    loss: f64,
    /// Share of packets that arrive twice.
    #[arg(long, default_value_t = 0.0)]
    duplicate: f64,
    /// Share of packets held back so that others overtake them.
    #[arg(long, default_value_t = 0.0)]
    reorder: f64,
    /// Mbit/s
    #[arg(long)]
    rate: Option<u64>,
    /// Octets that may wait for the rate
    #[arg(long, default_value_t = 256 * 1024)]
    queue: usize,
    /// Largest packet, in octets.
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
    /// Time that the link's thread stays awake around packets: exact delays for CPU time
    #[arg(long, default_value = "0ms", value_parser = parse_duration)]
    awake: Duration,
    /// Seed of all random decisions
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// IPv6 instead of IPv4.
    #[arg(long)]
    ipv6: bool,
    /// Number of packets that measure the delay
    #[arg(long, default_value_t = 2000)]
    count: u32,
    /// Megabytes that measure the throughput
    #[arg(long, default_value_t = 200)]
    megabytes: usize,
    /// Print one JSON object for each delay instead of a table
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match measure(&args) {
        Ok(rows) => {
            report::print_table(&rows, args.json);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("lab: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> io::Result<Vec<report::MeasuredRow>> {
    args.delay
        .iter()
        .map(|&delay| measure_row(args, delay))
        .collect()
}

fn measure_row(args: &Args, delay: Duration) -> io::Result<report::MeasuredRow> {
    let mut lab = NetworkLab::new()?;
    let (near, far) = (lab.add_node("near")?, lab.add_node("far")?);
    let lab_link = lab.connect_nodes(&near, &far, &args.conditions(delay))?;
    let address = |end: &nearpath_testkit::lab::LinkEnd| {
        if args.ipv6 {
            IpAddr::V6(end.v6)
        } else {
            IpAddr::V4(end.v4)
        }
    };
    let to = address(lab_link.second_end());
    let pings = traffic::measure_pings(&near, &far, to, args.count)?;
    let bulk = traffic::measure_bulk(&near, &far, to, args.megabytes * 1_000_000, &lab_link)?;
    Ok(report::MeasuredRow::new(delay, pings, bulk))
}

impl Args {
    fn conditions(&self, delay: Duration) -> LinkConditions {
        LinkConditions {
            delay,
            jitter: self.jitter,
            loss: self.loss,
            duplicate: self.duplicate,
            reorder: self.reorder,
            rate: self.rate.map(|rate| rate * 1_000_000),
            queue_bytes: self.queue,
            seed: self.seed,
            mtu: self.mtu,
            awake: self.awake,
            ..LinkConditions::default()
        }
    }
}

/// Parses a duration such as `0.5ms`, `300us` or `1s`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(
        text.find(|c: char| c.is_ascii_alphabetic())
            .unwrap_or(text.len()),
    );
    let second = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err(format!("{text}: a number and us, ms or s, as in 0.5ms")),
    };
    let number: f64 = number
        .parse()
        .map_err(|_| format!("{text}: {number} is no number"))?;
    Duration::try_from_secs_f64(number * second).map_err(|error| format!("{text}: {error}"))
}
