//! A PostgreSQL server at a distance, and short-lived processes that connect to it and ask one question.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::{Args, here, land, retail, round_trip};
use crate::apps::need::{Missing, Python};
use crate::apps::retail::Database;
use crate::command::quic::Place;
use crate::compare::{Better, Comparison, Goal, Ratio, Sample};
use crate::pool::bouncer::{Asks, Bouncer};
use crate::pool::stage::{Ground, Stage};
use crate::remote::Error;
use crate::tally::Tally;

/// Processes of a variant, in all rounds together; and how many there are at once.
const PROCESSES: usize = 80;
/// The ceiling.
const MOST: u32 = 20;
/// The secret that holds the password.
const SECRET: &str = "retail";
/// What connects: see bench/functions/connect.py.
const CLIENTS: [&str; 2] = ["libpq", "pg8000"];

/// Who connects to the database, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Direct,
    Bouncer(Asks),
    /// The node logs in: that the function runs is its authentication.
    Pool,
    /// The function does.
    PoolOwn,
}

impl Way {
    const ALL: [Self; 5] = [
        Self::Direct,
        Self::Bouncer(Asks::Scram),
        Self::Bouncer(Asks::Nothing),
        Self::Pool,
        Self::PoolOwn,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Bouncer(Asks::Scram) => "pgbouncer",
            Self::Bouncer(Asks::Nothing) => "pgbouncer, any",
            Self::Pool => "pool",
            Self::PoolOwn => "pool, own login",
        }
    }
}

/// Every case with the database at this distance. What is missing is told, and left out.
pub(super) fn measure(args: &Args, place: Place, comparison: &mut Comparison) -> Result<(), Error> {
    if !args.wants("PostgreSQL") && !args.wants("Hello, Retail!") {
        return Ok(());
    }
    let ground = land(args, place)?;
    match Town::build(args, place, &ground) {
        Ok(town) => {
            if !town.bouncers.iter().any(Option::is_some) {
                comparison.remark(
                    "left out: PgBouncer, which is not installed (apt-get install pgbouncer)"
                        .to_owned(),
                );
            }
            ground.near.clone().enter(|| here(town.all(comparison)))
        }
        Err(error) if error.is::<Missing>() => {
            comparison.remark(format!(
                "left out, database, {}: {error}",
                round_trip(place)
            ));
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// The database, its bouncers, and what functions need.
pub(super) struct Town<'a> {
    pub(super) args: &'a Args,
    pub(super) place: Place,
    pub(super) python: Python,
    database: Database,
    bouncers: [Option<Bouncer>; 2],
    /// What a function is told of the database.
    variables: Vec<(String, String)>,
}

impl<'a> Town<'a> {
    fn build(args: &'a Args, place: Place, ground: &Ground) -> Result<Self, Error> {
        let python = Python::with_packages("retail")?;
        let IpAddr::V4(at) = ground.server.ip() else {
            return Err("the lab's addresses are IPv4".into());
        };
        let (database, variables) = Database::start(&ground.far, Some(at))?;
        let mut town = Self {
            args,
            place,
            python,
            database,
            bouncers: [None, None],
            variables,
        };
        for (bouncer, asks) in [Asks::Scram, Asks::Nothing].into_iter().enumerate() {
            town.bouncers[bouncer] =
                Bouncer::start(&ground.near, town.host(), town.of("PASS"), MOST, asks)?;
        }
        Ok(town)
    }

    fn of(&self, name: &str) -> &str {
        self.variables
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
            .unwrap_or_default()
    }

    /// `HOST:PORT` of the server.
    fn host(&self) -> &str {
        self.of("HOST")
    }

    /// The egress of a function for which the node logs in.
    pub(super) fn egress(&self) -> String {
        let login = format!("user=retail password=secret:{SECRET} database=retail");
        format!("{} protocol=postgres max={MOST} {login}", self.host())
    }

    async fn all(&self, comparison: &mut Comparison) -> Result<(), Error> {
        let stage = Stage::start(&[]).await?;
        stage.secret(SECRET, self.of("PASS")).await?;
        for client in CLIENTS {
            self.processes(&stage, client, comparison).await?;
        }
        retail::measure(self, &stage, comparison).await
    }

    async fn processes(
        &self,
        stage: &Stage,
        client: &str,
        comparison: &mut Comparison,
    ) -> Result<(), Error> {
        let case = format!(
            "PostgreSQL, {client}: connect and ask, {}",
            round_trip(self.place)
        );
        if !self.args.wants(&case) {
            return Ok(());
        }
        self.deploy(stage, client).await?;
        if client == CLIENTS[0] {
            self.at_once(stage, client, comparison).await?; // before others connect: the log is for all of them
        }
        let count = PROCESSES.div_ceil(self.args.rounds);
        let ways: Vec<_> = Way::ALL.into_iter().filter(|way| self.has(*way)).collect();
        let names: Vec<_> = ways.iter().map(|way| way.name()).collect();
        comparison
            .case(&case, &names, async |index| {
                let mut times = Vec::new();
                for _ in 0..count {
                    times.push(self.connected(stage, client, ways[index]).await?);
                }
                Ok::<_, Error>(told(&times))
            })
            .await?;
        against(comparison, &case, "pool", "direct", 0.3);
        against(comparison, &case, "pool", "pgbouncer", 1.2);
        against(comparison, &case, "pool", "pgbouncer, any", 1.2);
        Ok(())
    }

    fn has(&self, way: Way) -> bool {
        !matches!(way, Way::Bouncer(asks) if self.bouncer(asks).is_none())
    }

    fn bouncer(&self, asks: Asks) -> Option<&Bouncer> {
        self.bouncers[usize::from(asks == Asks::Nothing)].as_ref()
    }

    /// One function for which the node logs in, and one that does it itself.
    async fn deploy(&self, stage: &Stage, client: &str) -> Result<(), Error> {
        let image = stage.image("connect", |folder| {
            fs::copy("bench/functions/connect.py", folder.join("connect.py"))?;
            copy(self.python.packages(), &folder.join("packages"))
        })?;
        let own = format!("{} protocol=postgres max={MOST}", self.host());
        let variables = [("CLIENT", client)];
        for (name, egress) in [
            (client.to_owned(), self.egress()),
            (format!("{client}-own"), own),
        ] {
            stage
                .deploy(
                    &name,
                    &image,
                    "python3 connect.py",
                    &egress,
                    self.variables(&variables),
                )
                .await?;
        }
        Ok(())
    }

    /// What one process says that it took.
    async fn connected(&self, stage: &Stage, client: &str, way: Way) -> Result<Duration, Error> {
        let text = match way {
            Way::Direct => self.native(client, self.host())?,
            Way::Bouncer(asks) => {
                let bouncer = self.bouncer(asks).ok_or("there is no PgBouncer")?;
                self.native(client, &bouncer.address.to_string())?
            }
            Way::Pool => stage.call(client, Bytes::new()).await?.to_vec(),
            Way::PoolOwn => stage
                .call(&format!("{client}-own"), Bytes::new())
                .await?
                .to_vec(),
        };
        let text = String::from_utf8_lossy(&text).trim().to_owned();
        text.parse()
            .map(Duration::from_nanos)
            .map_err(|_| format!("{}: the process says {text:?}", way.name()).into())
    }

    fn native(&self, client: &str, host: &str) -> Result<Vec<u8>, Error> {
        let mut command = self.python.run(Path::new("bench/functions/connect.py"));
        let done = command
            .envs(self.variables.iter().cloned())
            .env("HOST", host)
            .env("CLIENT", client)
            .output()?;
        Ok(done.stdout)
    }

    /// As many processes at once: the database's own log says how many connections it had.
    async fn at_once(
        &self,
        stage: &Stage,
        client: &str,
        comparison: &mut Comparison,
    ) -> Result<(), Error> {
        let begun = Instant::now();
        let calls = (0..PROCESSES).map(|_| stage.call(client, Bytes::new()));
        let answers = futures_util::future::join_all(calls).await;
        let failed: Vec<_> = answers
            .iter()
            .filter_map(|answer| answer.as_ref().err())
            .collect();
        if let Some(why) = failed.first() {
            comparison.remark(format!(
                "{} of {PROCESSES} processes failed: {why}",
                failed.len()
            ));
        }
        let case = format!("{PROCESSES} processes at once, {}", round_trip(self.place));
        let figure = |what, value, goal| Ratio {
            name: format!("{case}: {what}"),
            value,
            better: Better::Lower,
            goal,
        };
        comparison.figure(figure("failed", failed.len() as f64, 0.0));
        let most = self.database.most_at_once()? as f64;
        comparison.figure(figure(
            "connections that the database had",
            most,
            f64::from(MOST),
        ));
        comparison.remark(format!(
            "{case}: all were done after {:.2} s",
            begun.elapsed().as_secs_f64()
        ));
        Ok(())
    }

    /// Those of the database, and more.
    pub(super) fn variables(&self, more: &[(&str, &str)]) -> Value {
        let own = self
            .variables
            .iter()
            .map(|(name, value)| (name.clone(), json!(value)));
        let more = more
            .iter()
            .map(|(name, value)| ((*name).to_owned(), json!(value)));
        Value::Object(own.chain(more).collect::<Map<_, _>>())
    }
}

pub(super) fn told(times: &[Duration]) -> Sample {
    let mut tally = Tally::default();
    times.iter().for_each(|time| tally.add(Ok(*time)));
    Sample::of(&tally, times.iter().sum(), Duration::ZERO)
}

pub(super) fn against(comparison: &mut Comparison, case: &str, over: &str, under: &str, goal: f64) {
    let goal = Goal {
        value: |row| row.p50_us,
        better: Better::Lower,
        goal,
    };
    comparison.ratio(
        &format!("p50, {case}, {over}/{under}"),
        case,
        over,
        under,
        goal,
    );
}

/// A folder with all that is in it.
pub(super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
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
