//! Mints a ticket with the rendezvous' key; no rendezvous has to run.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nearpath_meet::ticket::{Job, Key, Ticket};
use nearpath_types::SpiffeId;
use serde_json::json;

use super::TicketArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::output;

/// Prints it.
pub(super) fn run(args: &TicketArgs) -> Outcome {
    let you = identity(&args.job, &args.worker)?;
    let key = Key::read(&args.key.path()).map_err(|error| {
        Failure::new(
            Exit::Failed,
            format!("{error}: the rendezvous makes it at its first start; copy it here, or name it with --key"),
        )
    })?;
    let until = end(args.life);
    let ticket = Ticket { you: you.clone(), job: args.job.clone(), leader: args.leader, until }.mint(&key).0;
    let text = match args.json {
        true => format!(
            "{}\n",
            json!({"ticket": ticket, "worker": you.to_string(), "job": args.job.as_str(), "leader": args.leader, "until": until})
        ),
        false => format!("{ticket}\n"),
    };
    output::print(&text)?;
    Ok(Exit::Ok)
}

fn end(life: Duration) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_add(life).as_secs()
}

/// `NAME/NUMBER` is short for the identity that a job's workers have by default.
fn identity(job: &Job, worker: &str) -> Result<SpiffeId, Failure> {
    let usage = |why: String| Failure::new(Exit::Usage, format!("--worker {worker:?}: {why}"));
    if worker.starts_with("spiffe:") {
        return worker.parse().map_err(|error| usage(format!("{error}")));
    }
    let (name, number) = worker.rsplit_once('/').unwrap_or((worker, "0"));
    let name = name.parse().map_err(|error| usage(format!("{error}")))?;
    let number = number.parse().map_err(|_| usage("write NAME/NUMBER, or spiffe://...".to_owned()))?;
    Ok(job.worker(&name, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_named_shortly_or_in_full() {
        let job: Job = "sort".parse().unwrap();
        for (text, id) in [
            ("map/3", "spiffe://sort/ns/job/fn/map/instance/3"),
            ("map", "spiffe://sort/ns/job/fn/map/instance/0"),
            ("spiffe://here/node/a/gateway", "spiffe://here/node/a/gateway"),
        ] {
            assert_eq!(identity(&job, text).unwrap().to_string(), id);
        }
        for text in ["Map/1", "map/x", "", "spiffe://"] {
            assert_eq!(identity(&job, text).unwrap_err().exit, Exit::Usage, "{text}");
        }
    }
}
