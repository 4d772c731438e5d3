//! `customers`: the shop's users, as they come and go.

use std::process::ExitCode;
use std::time::Duration;

use http::Uri;

use super::{Outcome, rate, seconds};
use crate::boutique::report;
use crate::boutique::visit::{self, Shop};
use crate::load::schedule::Schedule;

/// Options of `customers`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The shop's frontend
    #[arg(long, default_value = "http://127.0.0.1:8080/function/frontend")]
    url: Uri,

    /// Customers at a time
    #[arg(long, default_value_t = 20, value_name = "N", conflicts_with = "rate")]
    users: u64,

    /// Open loop: so many visits a second, whatever became of the earlier ones
    #[arg(long, value_parser = rate, value_name = "PER-SECOND")]
    rate: Option<f64>,

    /// Shortest pause of a customer after a visit, in seconds
    #[arg(long, default_value = "1", value_parser = seconds)]
    wait_min: Duration,

    /// Longest pause of a customer after a visit, in seconds
    #[arg(long, default_value = "10", value_parser = seconds)]
    wait_max: Duration,

    /// How long, in seconds
    #[arg(long, default_value = "8", value_parser = seconds)]
    duration: Duration,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Exit code 1 when any request failed, or none was answered.
pub(crate) async fn run(args: Args) -> Outcome {
    let base = args.url.path().trim_end_matches('/').to_owned();
    let shop = Shop {
        addr: super::load::address(&args.url)?,
        base,
    };
    let outcome = match args.rate {
        Some(rate) => visit::open(shop, Schedule::new(rate, args.duration)).await?,
        None => {
            visit::closed(
                shop,
                args.users,
                (args.wait_min, args.wait_max.max(args.wait_min)),
                args.duration,
            )
            .await
        }
    };
    match args.json {
        true => println!("{}", report::json(&outcome)),
        false => print!("{}", report::table(&outcome)),
    }
    let all = report::total(&outcome);
    Ok(if all.failed() == 0 && all.answered() > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
