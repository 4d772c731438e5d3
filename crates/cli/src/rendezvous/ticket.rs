//! `nearpath rendezvous ticket`: mints a worker's ticket with the rendezvous' key file. The
//! rendezvous need not run, because the signature alone makes a ticket valid.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nearpath_p2p::ticket::{JobName, RendezvousKey, WorkerTicket};
use nearpath_types::SpiffeId;
use serde_json::json;

use super::TicketArgs;
use crate::exit::{CommandError, CommandResult, ExitStatus};
use crate::output;

/// Prints a new ticket.
pub(super) fn run(args: &TicketArgs) -> CommandResult {
    let worker = worker_identity(&args.job, &args.worker)?;
    let key = RendezvousKey::read(&args.key.key_path()).map_err(|error| {
        CommandError::new(
            ExitStatus::Failed,
            format!("{error}: the rendezvous creates it at its first start; copy it here, or set its path with --key"),
        )
    })?;
    let until = expiry(args.validity);
    let ticket = WorkerTicket {
        worker: worker.clone(),
        job: args.job.clone(),
        leader: args.leader,
        until,
    }
    .mint(&key)
    .0;
    let text = match args.json {
        true => format!(
            "{}\n",
            json!({"ticket": ticket, "worker": worker.to_string(), "job": args.job.as_str(), "leader": args.leader, "until": until})
        ),
        false => format!("{ticket}\n"),
    };
    output::print(&text)?;
    Ok(ExitStatus::Ok)
}

/// Returns the expiry of a ticket that is valid for `life` from now, in seconds since 1970.
fn expiry(life: Duration) -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    now.saturating_add(life).as_secs()
}

/// Parses a worker: a SPIFFE ID, or `NAME/NUMBER` for the default identity of a worker of the job.
/// Without `/NUMBER` the number is 0.
fn worker_identity(job: &JobName, worker: &str) -> Result<SpiffeId, CommandError> {
    let usage =
        |why: String| CommandError::new(ExitStatus::Usage, format!("--worker {worker:?}: {why}"));
    if worker.starts_with("spiffe:") {
        return worker.parse().map_err(|error| usage(format!("{error}")));
    }
    let (name, number) = worker.rsplit_once('/').unwrap_or((worker, "0"));
    let name = name.parse().map_err(|error| usage(format!("{error}")))?;
    let number = number
        .parse()
        .map_err(|_| usage("expected NAME/NUMBER or spiffe://...".to_owned()))?;
    Ok(job.worker_identity(&name, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_named_by_number_or_by_spiffe_id() {
        let job: JobName = "sort".parse().unwrap();
        for (text, id) in [
            ("map/3", "spiffe://sort/ns/job/fn/map/instance/3"),
            ("map", "spiffe://sort/ns/job/fn/map/instance/0"),
            (
                "spiffe://here/node/a/gateway",
                "spiffe://here/node/a/gateway",
            ),
        ] {
            assert_eq!(worker_identity(&job, text).unwrap().to_string(), id);
        }
        for text in ["Map/1", "map/x", "", "spiffe://"] {
            assert_eq!(
                worker_identity(&job, text).unwrap_err().exit,
                ExitStatus::Usage,
                "{text}"
            );
        }
    }
}
