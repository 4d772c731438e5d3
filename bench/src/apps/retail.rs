//! Hello, Retail!: fourteen of its functions with their database. Four are asked alone, three begin chains.
//!
//! The functions open a connection to the database for each access, on the machine where it runs; see examples/retail.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nearpath_testkit::lab::LabNode;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::need::{Missing, Python, examples};
use super::{App, Aside, Calls, Case, Function};
use crate::remote::Error;
use crate::remote::call::Call;

/// Those that call nobody, and whether they ask the database.
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
/// Those that begin a chain.
const CALLERS: [&str; 3] = ["photo-request", "photo-acquire", "product-purchase"];
/// What `examples/retail/database` ends with when there is no PostgreSQL.
const NOT_TO_BE_HAD: i32 = 77;

/// Whom the calls before those of [`Calls::Acquire`] go to, in turn: the second one gets what the first one answers.
pub(crate) const ASSIGNERS: [&str; 2] = ["photo-assign", "photo-record"];

/// The example's PostgreSQL, in a folder of its own. Ends with this.
pub(crate) struct Database {
    node: LabNode,
    script: PathBuf,
    folder: TempDir,
    /// Where it listens beside loopback.
    listen: Option<Ipv4Addr>,
}

/// `node` is where the callees are to run.
pub(super) fn start(python: Python, node: &LabNode) -> Result<App, Error> {
    let example = examples()?.join("retail");
    let (database, variables) = Database::start(node, None)?;
    let services = example.join("services");
    let script = |name: &str| services.join(format!("{name}.py"));
    let callees = CALLEES.into_iter().map(|(name, stored)| match stored {
        true => Function {
            variables: variables.clone(),
            ..Function::new(name, script(name))
        },
        false => Function::new(name, script(name)),
    });
    let callers = CALLERS.into_iter().map(|name| Function {
        calls: true,
        ..Function::new(name, script(name))
    });
    let functions = callees.chain(callers).collect();
    Ok(App {
        python,
        functions,
        cases: cases(),
        aside: Box::new(database),
    })
}

/// As the published system has them: by the number of the function, and what the four alone do.
fn cases() -> Vec<Case> {
    let same = |name, function, call| Case {
        name,
        function,
        calls: Calls::Same(call),
    };
    let post = |body: &Value, holds| Call::post("/", body.to_string(), holds);
    let photographer = json!({ "id": "zoe", "name": "Zoe Ash", "email": "zoe@example.com" });
    let sale = json!({ "id": "boot-1", "user": "ann", "cents": 14900, "authorization": "none", "card": "1111" });
    let boot = json!({ "id": "boot-1", "name": "Hiking boot" });
    let purchase = json!({ "id": "boot-1", "user": "ann" });
    vec![
        same(
            "f1 database GET",
            "product-catalog-api",
            Call::get("/products?id=boot-1", "\"boot-1\""),
        ),
        same(
            "f7 database POST",
            "photo-register",
            post(&photographer, "\"zoe\""),
        ),
        same(
            "f10 GET",
            "photo-success",
            Call::get("/?photographer=ada&product=boot-1", "\"accepted\": true"),
        ),
        same(
            "f15 POST",
            "product-purchase-publish",
            post(&sale, "\"purchased\""),
        ),
        same(
            "chain f3 f4 f5 f6",
            "photo-request",
            post(&boot, "\"assignment\""),
        ),
        Case {
            name: "chain f8 f9 f10 f11",
            function: "photo-acquire",
            calls: Calls::Acquire,
        },
        same(
            "chain f12 f13 f14 f15",
            "product-purchase",
            post(&purchase, "\"purchased\""),
        ),
    ]
}

/// What the first of [`ASSIGNERS`] is asked.
pub(crate) fn assign() -> Call {
    Call::post(
        "/",
        json!({ "product": { "id": "boot-1", "name": "Hiking boot" } }).to_string(),
        "\"assignment\"",
    )
}

/// What the second one is asked, and the call that ends this assignment.
///
/// # Errors
/// When there is no assignment in what the first one has answered.
pub(crate) fn acquire(assigned: &[u8]) -> Result<[Call; 2], Error> {
    let fields: Value = serde_json::from_slice(assigned)?;
    let assignment = fields["assignment"]
        .as_str()
        .ok_or("photo-assign answers without an assignment")?;
    let sent = json!({ "assignment": assignment, "photo": "x".repeat(600) });
    Ok([
        Call::post("/", assigned.to_vec(), "\"assignment\""),
        Call::post("/", sent.to_string(), "\"done\""),
    ])
}

impl Database {
    /// With the variables that tell functions where it is: on loopback, or at an address of the node.
    ///
    /// # Errors
    /// [`Missing`] when there is no PostgreSQL.
    pub(crate) fn start(
        node: &LabNode,
        listen: Option<Ipv4Addr>,
    ) -> Result<(Self, Vec<(String, String)>), Error> {
        let script = examples()?.join("retail/database");
        let folder = tempfile::Builder::new()
            .prefix("nearpath-retail.")
            .tempdir()?;
        open(folder.path())?; // the server runs as a user of its own
        let database = Self {
            node: node.clone(),
            script,
            folder,
            listen,
        };
        let variables = parse(&database.command("start")?)?;
        Ok((database, variables))
    }

    /// The most connections at a time that its log tells of.
    pub(crate) fn most_at_once(&self) -> std::io::Result<usize> {
        let log = std::fs::read_to_string(self.folder.path().join("log"))?;
        Ok(most_at_once(&log))
    }

    fn command(&self, command: &str) -> Result<String, Error> {
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
        let said = String::from_utf8_lossy(&done.stderr)
            .trim()
            .replace('\n', "; ");
        match done.status.code() {
            Some(0) => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
            Some(NOT_TO_BE_HAD) => Err(Missing(format!("no PostgreSQL: {said}")).into()),
            _ => Err(format!("examples/retail/database {command}: {said}").into()),
        }
    }
}

impl Aside for Database {
    fn reset(&self) -> Result<(), Error> {
        self.command("seed").map(drop)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if self.folder.path().join("port").exists() {
            let _ = self.command("stop"); // what is left ends with the lab
        }
    }
}

/// Of the user of the functions; lines of the log are in the order of time.
fn most_at_once(log: &str) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    for line in log.lines().filter(|line| line.contains("user=retail")) {
        match (
            line.contains("connection authorized:"),
            line.contains("disconnection:"),
        ) {
            (true, _) => now += 1,
            (_, true) => now = now.saturating_sub(1),
            _ => {}
        }
        most = most.max(now);
    }
    most
}

fn open(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))
}

/// `export RETAIL_DATABASE=HOST:PORT RETAIL_PASSWORD=PASSWORD` as stack.yml makes variables of it.
fn parse(printed: &str) -> Result<Vec<(String, String)>, Error> {
    let value = |name: &str| {
        printed
            .split_whitespace()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    let (Some(host), Some(password)) = (value("RETAIL_DATABASE"), value("RETAIL_PASSWORD")) else {
        return Err(format!("the database does not say where it is: {printed:?}").into());
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
    fn where_the_database_is() {
        let variables =
            parse("export RETAIL_DATABASE=127.0.0.1:5433 RETAIL_PASSWORD=abc\n").unwrap();
        assert_eq!(
            variables[..2],
            [
                ("HOST".into(), "127.0.0.1:5433".into()),
                ("PASS".into(), "abc".into())
            ]
        );
        assert!(parse("export RETAIL_DATABASE=127.0.0.1:5433").is_err());
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
        assert_eq!(most_at_once(&log.concat()), 2);
    }

    #[test]
    fn every_case_asks_a_function_that_is_there() {
        let functions: Vec<_> = CALLEES
            .map(|(name, _)| name)
            .into_iter()
            .chain(CALLERS)
            .collect();
        for name in cases().iter().map(|case| case.function).chain(ASSIGNERS) {
            assert!(functions.contains(&name), "{name}");
        }
    }

    #[test]
    fn an_assignment_is_recorded_as_it_is_and_ended_by_its_number() {
        assert!(acquire(b"{\"assignment\": \"a-1\"}").is_ok());
        assert!(acquire(b"{}").is_err() && acquire(b"no JSON").is_err());
    }
}
