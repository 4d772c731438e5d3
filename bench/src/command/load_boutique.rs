//! `load-boutique`: the shop's users, as they come and go.

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
    /// The shop's frontend
    #[arg(long, default_value = "http://127.0.0.1:8080/function/frontend")]
    url: Uri,

    /// Customers at a time
    #[arg(long, default_value_t = 20, value_name = "N", conflicts_with = "rate")]
    users: u64,

    /// Open loop: so many visits a second, whatever became of the earlier ones
    #[arg(long, value_parser = parse_rate, value_name = "PER-SECOND")]
    rate: Option<f64>,

    /// Shortest pause of a customer after a visit, in seconds
    #[arg(long, default_value = "1", value_parser = parse_seconds)]
    wait_min: Duration,

    /// Longest pause of a customer after a visit, in seconds
    #[arg(long, default_value = "10", value_parser = parse_seconds)]
    wait_max: Duration,

    /// Length of the run in seconds
    #[arg(long, default_value = "8", value_parser = parse_seconds)]
    duration: Duration,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Exit code 1 when any request failed, or none was answered.
pub(crate) async fn run(args: LoadBoutiqueArgs) -> BenchOutcome {
    let base = args.url.path().trim_end_matches('/').to_owned();
    let shop = ShopAddress {
        addr: super::load::resolve_address(&args.url)?,
        base,
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
