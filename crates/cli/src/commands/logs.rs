//! `logs`: what a function's instances wrote.

use std::io::BufRead;
use std::time::SystemTime;

use nearpath_types::status::rfc3339;
use nearpath_types::{LogLine, LogQuery};

use crate::api::{Client, Target};
use crate::args::LogsArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::output;

pub(super) fn run(args: &LogsArgs) -> Outcome {
    let client = Client::new(Target::of(&args.connection, None)?);
    let query = LogQuery {
        function: args.name.clone(),
        instance: args.instance.clone(),
        tail: args.tail,
        since: args.since.map(|ago| SystemTime::now().checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH)),
        follow: args.follow,
    };
    for line in client.logs(&query)?.split(b'\n') {
        let line = line.map_err(|error| Failure::new(Exit::Unreachable, format!("the log broke off: {error}")))?;
        if !line.trim_ascii().is_empty() {
            output::print(&shown(&String::from_utf8_lossy(&line), args.json))?;
        }
    }
    Ok(Exit::Ok)
}

/// One line as it is printed; what is not understood is passed on as it came.
fn shown(line: &str, json: bool) -> String {
    match serde_json::from_str::<LogLine>(line) {
        Ok(line) if !json => format!("{} {} {}\n", rfc3339::format(line.timestamp), line.instance, line.text),
        _ => format!("{}\n", line.trim_end()),
    }
}
