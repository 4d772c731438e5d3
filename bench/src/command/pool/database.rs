//! Short-lived processes that connect to PostgreSQL and ask one question; and functions that connect for every access.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use nearpath_testkit::lab::Link;
use serde_json::{Map, Value, json};

use super::{Args, here};
use crate::apart::Error;
use crate::apps::need::{Missing, Python};
use crate::apps::retail::Database;
use crate::command::quic::Place;
use crate::compare::{Better, Comparison, Goal, Ratio, Sample};
use crate::tally::Tally;
use crate::warm::bouncer::Bouncer;
use crate::warm::stage::{Ground, Stage};

/// Processes of a case, in all rounds together.
const PROCESSES: usize = 80;
/// The ceiling.
const MOST: u32 = 20;
/// Who connects to the database, and how.
const WAYS: [&str; 3] = ["direct", "pgbouncer", "pool"];
/// The functions: by the pool, and by a new connection each.
const FUNCTIONS: [&str; 2] = ["pooled", "fresh"];
/// Requests of a measurement to a function that stays.
const REQUESTS: usize = 40;

/// Every case with the database at this distance. What is missing is told, and left out.
pub(super) fn measure(args: &Args, place: Place, comparison: &mut Comparison) -> Result<(), Error> {
    let link = match place {
        Place::Loopback => None,
        Place::Link(delay) => Some(Link { delay, ..Link::default() }),
    };
    let ground = Ground::new(link.as_ref())?;
    match Town::build(args, place, &ground) {
        Ok(town) => ground.near.clone().enter(|| here(town.all(comparison))),
        Err(error) if error.is::<Missing>() => {
            comparison.remark(format!("left out, database at {place}: {error}"));
            Ok(())
        }
        Err(error) => Err(error),
    }
}

struct Town<'a> {
    args: &'a Args,
    place: Place,
    python: Python,
    database: Database,
    bouncer: Option<Bouncer>,
    /// What a function is told of the database.
    variables: Vec<(String, String)>,
}

impl<'a> Town<'a> {
    fn build(args: &'a Args, place: Place, ground: &Ground) -> Result<Self, Error> {
        let python = Python::with_packages("retail")?;
        let IpAddr::V4(at) = ground.server.ip() else { return Err("the lab's addresses are IPv4".into()) };
        let (database, variables) = Database::start(&ground.far, Some(at))?;
        let of = |name: &str| {
            variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).unwrap_or_default()
        };
        let bouncer = Bouncer::start(&ground.near, of("HOST"), of("PASS"), MOST)?;
        Ok(Self { args, place, python, database, bouncer, variables })
    }

    fn of(&self, name: &str) -> &str {
        self.variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).unwrap_or_default()
    }

    async fn all(&self, comparison: &mut Comparison) -> Result<(), Error> {
        let stage = Stage::start().await?;
        let pooled = format!("{} protocol=postgres max={MOST}", self.of("HOST"));
        let fresh = format!("{} protocol=tcp warm=0", self.of("HOST"));
        self.processes(&stage, &pooled, comparison).await?;
        self.functions(&stage, [&pooled, &fresh], comparison).await
    }

    async fn processes(&self, stage: &Stage, egress: &str, comparison: &mut Comparison) -> Result<(), Error> {
        let case = format!("PostgreSQL: connect and ask, {}", self.place);
        if !self.args.wants(&case) {
            return Ok(());
        }
        let image = stage.image("connect", |folder| {
            fs::copy("bench/functions/connect.py", folder.join("connect.py"))?;
            copy(self.python.packages(), &folder.join("packages"))
        })?;
        stage.deploy("connect", &image, "python3 connect.py", egress, self.variables(&[])).await?;
        let count = PROCESSES.div_ceil(self.args.rounds);
        self.at_once(stage, comparison).await?; // before others connect: the log is for all of them
        let ways: Vec<_> = WAYS.into_iter().filter(|way| *way != WAYS[1] || self.bouncer.is_some()).collect();
        comparison
            .case(&case, &ways, async |index| {
                let mut times = Vec::new();
                for _ in 0..count {
                    times.push(self.connected(stage, ways[index]).await?);
                }
                Ok::<_, Error>(told(&times))
            })
            .await?;
        against(comparison, &case, "pool", "direct", 0.3);
        against(comparison, &case, "pool", "pgbouncer", 1.2);
        Ok(())
    }

    /// What one process says that it took.
    async fn connected(&self, stage: &Stage, way: &str) -> Result<Duration, Error> {
        let text = match (way, &self.bouncer) {
            ("pool", _) => stage.call("connect", Bytes::new()).await?.to_vec(),
            ("pgbouncer", Some(bouncer)) => self.native(&bouncer.address.to_string())?,
            _ => self.native(self.of("HOST"))?,
        };
        let text = String::from_utf8_lossy(&text).trim().to_owned();
        text.parse().map(Duration::from_nanos).map_err(|_| format!("{way}: the process says {text:?}").into())
    }

    fn native(&self, host: &str) -> Result<Vec<u8>, Error> {
        let mut command: Command = self.python.run(Path::new("bench/functions/connect.py"));
        let done = command.envs(self.variables.iter().cloned()).env("HOST", host).output()?;
        Ok(done.stdout)
    }

    /// As many processes at once: the database's own log says how many connections it had.
    async fn at_once(&self, stage: &Stage, comparison: &mut Comparison) -> Result<(), Error> {
        let calls = (0..PROCESSES).map(|_| stage.call("connect", Bytes::new()));
        let answers = futures_util::future::join_all(calls).await;
        let failed = answers.iter().filter(|answer| answer.is_err()).count();
        let name = format!("{PROCESSES} processes at once, {}: failed", self.place);
        comparison.figure(Ratio { name, value: failed as f64, better: Better::Lower, goal: 0.0 });
        let name = format!("{PROCESSES} processes at once, {}: connections that the database had", self.place);
        let most = self.database.most_at_once()? as f64;
        comparison.figure(Ratio { name, value: most, better: Better::Lower, goal: f64::from(MOST) });
        Ok(())
    }

    /// A function of the retail example, which opens a connection for every access.
    async fn functions(&self, stage: &Stage, egress: [&str; 2], comparison: &mut Comparison) -> Result<(), Error> {
        let case = format!("Hello, Retail! product-catalog-api, {}", self.place);
        if !self.args.wants(&case) {
            return Ok(());
        }
        let image = stage.image("catalog", |folder| {
            copy(Path::new("examples/retail/services"), folder)?;
            copy(self.python.packages(), &folder.join("packages"))
        })?;
        for (name, egress) in FUNCTIONS.into_iter().zip(egress) {
            let http = [("mode", "http"), ("upstream_url", "http://127.0.0.1:5000"), ("PYTHONPATH", "./packages")];
            stage.deploy(name, &image, "python3 product-catalog-api.py", egress, self.variables(&http)).await?;
        }
        let ask = async |index: usize| {
            let mut times = Vec::new();
            for _ in 0..REQUESTS {
                let begun = std::time::Instant::now();
                stage.get(FUNCTIONS[index], "/products?id=boot-1").await?;
                times.push(begun.elapsed());
            }
            Ok::<_, Error>(told(&times))
        };
        comparison.case(&case, &FUNCTIONS, ask).await?;
        against(comparison, &case, FUNCTIONS[0], FUNCTIONS[1], 0.5);
        Ok(())
    }

    fn variables(&self, more: &[(&str, &str)]) -> Value {
        let own = self.variables.iter().map(|(name, value)| (name.clone(), json!(value)));
        let more = more.iter().map(|(name, value)| ((*name).to_owned(), json!(value)));
        Value::Object(own.chain(more).collect::<Map<_, _>>())
    }
}

fn told(times: &[Duration]) -> Sample {
    let mut tally = Tally::default();
    times.iter().for_each(|time| tally.add(Ok(*time)));
    Sample::of(&tally, times.iter().sum(), Duration::ZERO)
}

fn against(comparison: &mut Comparison, case: &str, over: &str, under: &str, goal: f64) {
    let goal = Goal { value: |row| row.p50_us, better: Better::Lower, goal };
    comparison.ratio(&format!("p50, {case}, {over}/{under}"), case, over, under, goal);
}

/// A folder with all that is in it.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &target)?,
            false => fs::copy(entry.path(), target).map(drop)?,
        }
    }
    Ok(())
}
