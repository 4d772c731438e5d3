//! Hello, Retail!: fourteen of its functions with their database. Four are called alone, three
//! start chains.
//!
//! Each access opens a connection to the database, on the database's machine; see examples/retail.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nearpath_testkit::lab::LabNode;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::requirements::{MissingRequirement, PythonEnv, examples_folder};
use super::{AppCase, AppFunction, AppService, CaseCalls, ExampleApp};
use crate::remote::BenchError;
use crate::remote::call::RemoteCall;

/// Functions without callees; true: the function uses the database.
const CALLEES: [(&str, bool); 11] = [
    ("product-catalog-api", true),
    ("photo-register", true),
    ("photo-assign", true),
    ("photo-message", false),
    ("photo-record", true),
    ("photo-receive", true),
    ("photo-success", false),
    ("photo-report", true),
    ("product-purchase-get-price", true),
    ("product-purchase-authorize-cc", true),
    ("product-purchase-publish", false),
];
/// Functions that start a chain.
const CALLERS: [&str; 3] = ["photo-request", "photo-acquire", "product-purchase"];
/// Exit code of `examples/retail/database` when there is no PostgreSQL.
const EXIT_UNAVAILABLE: i32 = 77;

/// Functions that prepare the calls of [`CaseCalls::Acquire`]: the second one gets the response of
/// the first.
pub(crate) const ASSIGNERS: [&str; 2] = ["photo-assign", "photo-record"];

/// The example's PostgreSQL in its own folder. Dropping the value stops it.
pub(crate) struct RetailDatabase {
    node: LabNode,
    script: PathBuf,
    folder: TempDir,
    /// Listening address of the server, besides loopback.
    listen: Option<Ipv4Addr>,
}

/// Starts the functions' database on `node`, the machine of the callees.
pub(super) fn start_app(python: PythonEnv, node: &LabNode) -> Result<ExampleApp, BenchError> {
    let example = examples_folder()?.join("retail");
    let (database, variables) = RetailDatabase::start_database(node, None)?;
    let services = example.join("services");
    let script = |name: &str| services.join(format!("{name}.py"));
    let callees = CALLEES.into_iter().map(|(name, stored)| match stored {
        true => AppFunction {
            variables: variables.clone(),
            ..AppFunction::new(name, script(name))
        },
        false => AppFunction::new(name, script(name)),
    });
    let callers = CALLERS.into_iter().map(|name| AppFunction {
        calls: true,
        ..AppFunction::new(name, script(name))
    });
    let functions = callees.chain(callers).collect();
    Ok(ExampleApp {
        python,
        functions,
        cases: retail_cases(),
        service: Box::new(database),
    })
}

/// Cases of the published system, by function number, with the task of the four single functions.
pub(crate) fn retail_cases() -> Vec<AppCase> {
    let same = |name, function, call| AppCase {
        name,
        function,
        calls: CaseCalls::Same(call),
    };
    let post = |body: &Value, holds| RemoteCall::for_post("/", body.to_string(), holds);
    let photographer = json!({ "id": "zoe", "name": "Zoe Ash", "email": "zoe@example.com" });
    let sale = json!({ "id": "boot-1", "user": "ann", "cents": 14900, "authorization": "none", "card": "1111" });
    let boot = json!({ "id": "boot-1", "name": "Hiking boot" });
    let purchase = json!({ "id": "boot-1", "user": "ann" });
    vec![
        same(
            "f1 database GET",
            "product-catalog-api",
            RemoteCall::for_get("/products?id=boot-1", "\"boot-1\""),
        ),
        same(
            "f7 database POST",
            "photo-register",
            post(&photographer, "\"zoe\""),
        ),
        same(
            "f10 GET",
            "photo-success",
            RemoteCall::for_get("/?photographer=ada&product=boot-1", "\"accepted\": true"),
        ),
        same(
            "f15 POST",
            "product-purchase-publish",
            post(&sale, "\"purchased\""),
        ),
        same(
            "chain f3-f4-f5-f6",
            "photo-request",
            post(&boot, "\"assignment\""),
        ),
        AppCase {
            name: "chain f8-f9-f10-f11",
            function: "photo-acquire",
            calls: CaseCalls::Acquire,
        },
        same(
            "chain f12-f13-f14-f15",
            "product-purchase",
            post(&purchase, "\"purchased\""),
        ),
    ]
}

/// Call to the first of [`ASSIGNERS`].
pub(crate) fn assign_call() -> RemoteCall {
    RemoteCall::for_post(
        "/",
        json!({ "product": { "id": "boot-1", "name": "Hiking boot" } }).to_string(),
        "\"assignment\"",
    )
}

/// Call to the second one, and the call that ends this assignment.
///
/// # Errors
/// When the response of the first call has no assignment.
pub(crate) fn acquire_calls(assigned: &[u8]) -> Result<[RemoteCall; 2], BenchError> {
    let fields: Value = serde_json::from_slice(assigned)?;
    let assignment = fields["assignment"]
        .as_str()
        .ok_or("photo-assign returned no assignment")?;
    let sent = json!({ "assignment": assignment, "photo": "x".repeat(600) });
    Ok([
        RemoteCall::for_post("/", assigned.to_vec(), "\"assignment\""),
        RemoteCall::for_post("/", sent.to_string(), "\"done\""),
    ])
}

impl RetailDatabase {
    /// Starts the database and returns the variables with its address: on loopback, or of the node.
    ///
    /// # Errors
    /// [`MissingRequirement`] when there is no PostgreSQL.
    pub(crate) fn start_database(
        node: &LabNode,
        listen: Option<Ipv4Addr>,
    ) -> Result<(Self, Vec<(String, String)>), BenchError> {
        let script = examples_folder()?.join("retail/database");
        let folder = tempfile::Builder::new()
            .prefix("nearpath-retail.")
            .tempdir()?;
        make_readable(folder.path())?; // the server runs as a user of its own
        let database = Self {
            node: node.clone(),
            script,
            folder,
            listen,
        };
        let variables = parse_address(&database.run_command("start")?)?;
        Ok((database, variables))
    }

    /// Restores the data that calls have changed.
    ///
    /// # Errors
    /// When the database does not respond.
    pub(crate) fn load_seed(&self) -> Result<(), BenchError> {
        self.run_command("seed").map(drop)
    }

    /// Returns the maximum of concurrent connections, from the server's log.
    pub(crate) fn max_connections(&self) -> std::io::Result<usize> {
        let log = std::fs::read_to_string(self.folder.path().join("log"))?;
        Ok(count_max_connections(&log))
    }

    fn run_command(&self, command: &str) -> Result<String, BenchError> {
        let mut program = Command::new(&self.script);
        program
            .arg(command)
            .arg(self.folder.path())
            .stdin(Stdio::null());
        program.env(
            "RETAIL_HOST",
            self.listen.unwrap_or(Ipv4Addr::LOCALHOST).to_string(),
        );
        program.envs(self.listen.map(|at| ("RETAIL_LISTEN", at.to_string())));
        let done = self.node.run_program(&mut program)?;
        let stderr = String::from_utf8_lossy(&done.stderr)
            .trim()
            .replace('\n', "; ");
        match done.status.code() {
            Some(0) => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
            // Only this code means that there is no PostgreSQL; other failures are errors of the
            // run.
            Some(EXIT_UNAVAILABLE) => {
                Err(MissingRequirement(format!("no PostgreSQL: {stderr}")).into())
            }
            _ => Err(format!("examples/retail/database {command}: {stderr}").into()),
        }
    }
}

impl AppService for RetailDatabase {
    fn restore_data(&self) -> Result<(), BenchError> {
        self.load_seed()
    }
}

impl Drop for RetailDatabase {
    fn drop(&mut self) {
        // The script writes this file at the start: without it there is no server to stop.
        if self.folder.path().join("port").exists() {
            let _ = self.run_command("stop"); // what is left ends with the lab
        }
    }
}

/// Counts connections of the functions' user; the log is in the order of time.
fn count_max_connections(log: &str) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    for line in log.lines().filter(|line| line.contains("user=retail")) {
        match (
            line.contains("connection authorized:"),
            line.contains("disconnection:"),
        ) {
            (true, _) => now += 1,
            // A disconnection may precede the first line that is counted.
            (_, true) => now = now.saturating_sub(1),
            _ => {}
        }
        // After each line: the maximum lies between two events.
        most = most.max(now);
    }
    most
}

fn make_readable(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))
}

/// Parses `export RETAIL_DATABASE=HOST:PORT RETAIL_PASSWORD=PASSWORD` into the variables of
/// stack.yml.
fn parse_address(printed: &str) -> Result<Vec<(String, String)>, BenchError> {
    let value = |name: &str| {
        printed
            .split_whitespace()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    let (Some(host), Some(password)) = (value("RETAIL_DATABASE"), value("RETAIL_PASSWORD")) else {
        return Err(format!("the database printed no address: {printed:?}").into());
    };
    let variables = [
        ("HOST", host),
        ("PASS", password),
        ("USER", "retail"),
        ("DBNAME", "retail"),
    ];
    Ok(variables
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_the_database_is_parsed() {
        let variables =
            parse_address("export RETAIL_DATABASE=127.0.0.1:5433 RETAIL_PASSWORD=abc\n").unwrap();
        assert_eq!(
            variables[..2],
            [
                ("HOST".into(), "127.0.0.1:5433".into()),
                ("PASS".into(), "abc".into())
            ]
        );
        assert!(parse_address("export RETAIL_DATABASE=127.0.0.1:5433").is_err());
    }

    #[test]
    fn connections_are_counted_while_they_are_open() {
        let line = |what: &str| format!("2026-01-01 LOG:  {what} user=retail database=retail\n");
        let (come, gone) = (
            line("connection authorized:"),
            line("disconnection: session time: 0:00:00.1"),
        );
        let other = "LOG: connection authorized: user=postgres\n";
        let log = [come.as_str(), &come, &gone, &come, other, &gone];
        assert_eq!(count_max_connections(&log.concat()), 2);
    }

    #[test]
    fn every_case_calls_an_existing_function() {
        let functions: Vec<_> = CALLEES
            .map(|(name, _)| name)
            .into_iter()
            .chain(CALLERS)
            .collect();
        for name in retail_cases()
            .iter()
            .map(|case| case.function)
            .chain(ASSIGNERS)
        {
            assert!(functions.contains(&name), "{name}");
        }
    }

    #[test]
    fn an_assignment_is_recorded_unchanged_and_ended_by_its_number() {
        assert!(acquire_calls(b"{\"assignment\": \"a-1\"}").is_ok());
        assert!(acquire_calls(b"{}").is_err() && acquire_calls(b"no JSON").is_err());
    }
}
