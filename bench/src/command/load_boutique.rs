//! `load-boutique`: the shop's users with realistic pauses.

use std::process::ExitCode;
use std::time::Duration;

use http::Uri;

use super::{BenchOutcome, parse_rate, parse_seconds};
use crate::boutique::report;
use crate::boutique::session::{self, ShopAddress};
use crate::load::schedule::ArrivalSchedule;

/// Options of `load-boutique`.
#[derive(clap::Args)]
pub(crate) struct LoadBoutiqueArgs {
    /// Send requests to this frontend of the shop
    #[arg(long, default_value = "http://127.0.0.1:8080/function/frontend")]
    url: Uri,

    /// Set the number of concurrent customers
    #[arg(long, default_value_t = 20, value_name = "N", conflicts_with = "rate")]
    users: u64,

    /// Open loop: start this number of visits per second, independent of earlier ones
    #[arg(long, value_parser = parse_rate, value_name = "PER-SECOND")]
    rate: Option<f64>,

    /// Set the shortest pause after a visit, in seconds
    #[arg(long, default_value = "1", value_parser = parse_seconds)]
    wait_min: Duration,

    /// Set the longest pause after a visit, in seconds
    #[arg(long, default_value = "10", value_parser = parse_seconds)]
    wait_max: Duration,

    /// Set the length of the run in seconds
    #[arg(long, default_value = "8", value_parser = parse_seconds)]
    duration: Duration,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the load. The exit code is 1 if a request failed, or without responses.
pub(crate) async fn run(args: LoadBoutiqueArgs) -> BenchOutcome {
    let base_path = args.url.path().trim_end_matches('/').to_owned();
    let shop = ShopAddress {
        addr: super::load::resolve_address(&args.url)?,
        base_path,
    };
    let outcome = match args.rate {
        Some(rate) => session::run_open(shop, ArrivalSchedule::new(rate, args.duration)).await?,
        None => {
            session::run_closed(
                shop,
                args.users,
                (args.wait_min, args.wait_max.max(args.wait_min)),
                args.duration,
            )
            .await
        }
    };
    match args.json {
        true => println!("{}", report::to_json(&outcome)),
        false => print!("{}", report::render_table(&outcome)),
    }
    let all = report::total_tally(&outcome);
    Ok(if all.failed_count() == 0 && all.answered_count() > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
