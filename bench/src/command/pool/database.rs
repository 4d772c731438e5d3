//! A distant PostgreSQL server, and short-lived processes that connect and make one query.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::{PoolArgs, build_network, queries, retail, round_trip_name, run_local};
use crate::apps::requirements::{MissingRequirement, PythonEnv};
use crate::apps::retail::RetailDatabase;
use crate::command::quic::NetworkPlace;
use crate::compare::{BenchComparison, BetterDirection, GoalRatio, RatioGoal, RoundSample};
use crate::pool::pgbouncer::{AuthMethod, PgBouncer};
use crate::pool::setup::{PoolNetwork, PoolNode};
use crate::remote::BenchError;
use crate::tally::RequestTally;

/// Number of processes of a variant in all rounds, and of concurrent processes.
const PROCESS_COUNT: usize = 80;
/// Connection limit.
const MAX_CONNECTIONS: u32 = 20;
/// The secret that holds the password.
const SECRET_NAME: &str = "retail";
/// Client libraries of bench/functions/connect.py.
const CLIENT_LIBRARIES: [&str; 2] = ["libpq", "pg8000"];

/// Methods to connect to the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoginMethod {
    Direct,
    Bouncer(AuthMethod),
    /// The node logs in; a running function is authenticated by itself.
    Pool,
    /// The function logs in.
    PoolOwn,
}

impl LoginMethod {
    const ALL: [Self; 5] = [
        Self::Direct,
        Self::Bouncer(AuthMethod::Scram),
        Self::Bouncer(AuthMethod::Nothing),
        Self::Pool,
        Self::PoolOwn,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Bouncer(AuthMethod::Scram) => "pgbouncer",
            Self::Bouncer(AuthMethod::Nothing) => "pgbouncer, any",
            Self::Pool => "pool",
            Self::PoolOwn => "pool, own login",
        }
    }
}

/// Measures every case with the database at this distance. Cases with a missing dependency are
/// reported and omitted.
pub(super) fn measure(
    args: &PoolArgs,
    place: NetworkPlace,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    if !args.wants_case("PostgreSQL") && !args.wants_case("Hello, Retail!") {
        return Ok(());
    }
    let network = build_network(args, place)?;
    match DatabaseFixture::build(args, place, &network) {
        Ok(fixture) => {
            if !fixture.bouncers.iter().any(Option::is_some) {
                comparison.add_remark(
                    "omitted: PgBouncer is not installed (apt-get install pgbouncer)".to_owned(),
                );
            }
            network
                .near
                .clone()
                .enter(|| run_local(fixture.measure_all(comparison)))
        }
        Err(error) if error.is::<MissingRequirement>() => {
            comparison.add_remark(format!(
                "omitted: database, {}: {error}",
                round_trip_name(place)
            ));
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// The database, its PgBouncers, and the settings of functions.
pub(super) struct DatabaseFixture<'a> {
    pub(super) args: &'a PoolArgs,
    pub(super) place: NetworkPlace,
    pub(super) python: PythonEnv,
    database: RetailDatabase,
    bouncers: [Option<PgBouncer>; 2],
    /// Variables that give functions the address of the database.
    variables: Vec<(String, String)>,
}

impl<'a> DatabaseFixture<'a> {
    fn build(
        args: &'a PoolArgs,
        place: NetworkPlace,
        network: &PoolNetwork,
    ) -> Result<Self, BenchError> {
        let python = PythonEnv::with_packages("retail")?;
        let IpAddr::V4(at) = network.server.ip() else {
            return Err("expected an IPv4 address of the lab".into());
        };
        let (database, variables) = RetailDatabase::start_database(&network.far, Some(at))?;
        let mut fixture = Self {
            args,
            place,
            python,
            database,
            bouncers: [None, None],
            variables,
        };
        for (bouncer, auth) in [AuthMethod::Scram, AuthMethod::Nothing]
            .into_iter()
            .enumerate()
        {
            fixture.bouncers[bouncer] = PgBouncer::start(
                &network.near,
                fixture.host_port(),
                fixture.variable_value("PASS"),
                MAX_CONNECTIONS,
                auth,
            )?;
        }
        Ok(fixture)
    }

    fn variable_value(&self, name: &str) -> &str {
        self.variables
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
            .unwrap_or_default()
    }

    /// Returns `HOST:PORT` of the server.
    pub(super) fn host_port(&self) -> &str {
        self.variable_value("HOST")
    }

    /// Returns the egress of a function for which the node logs in.
    pub(super) fn egress_list(&self) -> String {
        let login = format!("user=retail password=secret:{SECRET_NAME} database=retail");
        format!(
            "{} protocol=postgres max={MAX_CONNECTIONS} {login}",
            self.host_port()
        )
    }

    async fn measure_all(&self, comparison: &mut BenchComparison) -> Result<(), BenchError> {
        let node = PoolNode::start(&[]).await?;
        node.create_secret(SECRET_NAME, self.variable_value("PASS"))
            .await?;
        for client in CLIENT_LIBRARIES {
            self.measure_processes(&node, client, comparison).await?;
        }
        if self.place == NetworkPlace::Loopback {
            queries::measure(self, &node, comparison).await?; // CPU time does not depend on the distance
        }
        retail::measure(self, &node, comparison).await
    }

    async fn measure_processes(
        &self,
        node: &PoolNode,
        client: &str,
        comparison: &mut BenchComparison,
    ) -> Result<(), BenchError> {
        let case = format!(
            "PostgreSQL, {client}: connect and query, {}",
            round_trip_name(self.place)
        );
        if !self.args.wants_case(&case) {
            return Ok(());
        }
        self.deploy_functions(node, client).await?;
        if client == CLIENT_LIBRARIES[0] {
            self.measure_concurrent(node, client, comparison).await?; // before others connect: the log is for all of them
        }
        // All rounds together make the stated number of processes.
        let count = PROCESS_COUNT.div_ceil(self.args.rounds);
        let methods: Vec<_> = LoginMethod::ALL
            .into_iter()
            .filter(|method| self.has_method(*method))
            .collect();
        let names: Vec<_> = methods.iter().map(|method| method.name()).collect();
        comparison
            .measure_case(&case, &names, async |index| {
                let mut times = Vec::new();
                for _ in 0..count {
                    times.push(self.measure_connect(node, client, methods[index]).await?);
                }
                Ok::<_, BenchError>(to_sample(&times))
            })
            .await?;
        add_ratio_goal(comparison, &case, "pool", "direct", 0.3);
        // PgBouncer runs on the caller's machine, so parity is the most that can be expected.
        add_ratio_goal(comparison, &case, "pool", "pgbouncer", 1.2);
        add_ratio_goal(comparison, &case, "pool", "pgbouncer, any", 1.2);
        Ok(())
    }

    fn has_method(&self, method: LoginMethod) -> bool {
        !matches!(method, LoginMethod::Bouncer(auth) if self.bouncer_for(auth).is_none())
    }

    pub(super) fn bouncer_for(&self, auth: AuthMethod) -> Option<&PgBouncer> {
        self.bouncers[usize::from(auth == AuthMethod::Nothing)].as_ref()
    }

    /// Deploys a function for which the node logs in, and a function that logs in by itself.
    pub(super) async fn deploy_functions(
        &self,
        node: &PoolNode,
        client: &str,
    ) -> Result<(), BenchError> {
        let image = node.create_image("connect", |folder| {
            fs::copy("bench/functions/connect.py", folder.join("connect.py"))?;
            copy_folder(self.python.packages_folder(), &folder.join("packages"))
        })?;
        let own = format!(
            "{} protocol=postgres max={MAX_CONNECTIONS}",
            self.host_port()
        );
        let variables = [("CLIENT", client)];
        for (name, egress) in [
            (client.to_owned(), self.egress_list()),
            (format!("{client}-own"), own),
        ] {
            node.deploy_function(
                &name,
                &image,
                "python3 connect.py",
                &egress,
                self.function_variables(&variables),
            )
            .await?;
        }
        Ok(())
    }

    /// Returns the connect time that a process reports.
    pub(super) async fn measure_connect(
        &self,
        node: &PoolNode,
        client: &str,
        method: LoginMethod,
    ) -> Result<Duration, BenchError> {
        let text = match method {
            LoginMethod::Direct => self.run_native(client, self.host_port())?,
            LoginMethod::Bouncer(auth) => {
                let bouncer = self.bouncer_for(auth).ok_or("PgBouncer is not running")?;
                self.run_native(client, &bouncer.address.to_string())?
            }
            LoginMethod::Pool => node.call_function(client, Bytes::new()).await?.to_vec(),
            LoginMethod::PoolOwn => node
                .call_function(&format!("{client}-own"), Bytes::new())
                .await?
                .to_vec(),
        };
        let text = String::from_utf8_lossy(&text).trim().to_owned();
        text.parse().map(Duration::from_nanos).map_err(|_| {
            format!(
                "{}: expected nanoseconds from the process, got {text:?}",
                method.name()
            )
            .into()
        })
    }

    /// Returns a command that runs a script on this machine, with the variables of functions.
    pub(super) fn script_command(&self, script: &Path) -> Command {
        let mut command = self.python.script_command(script);
        command.envs(self.variables.iter().cloned());
        command
    }

    fn run_native(&self, client: &str, host: &str) -> Result<Vec<u8>, BenchError> {
        let done = self
            .script_command(Path::new("bench/functions/connect.py"))
            .env("HOST", host)
            .env("CLIENT", client)
            .output()?;
        Ok(done.stdout)
    }

    /// Runs all processes at once: the database's own log has the number of its connections.
    async fn measure_concurrent(
        &self,
        node: &PoolNode,
        client: &str,
        comparison: &mut BenchComparison,
    ) -> Result<(), BenchError> {
        let begun = Instant::now();
        let calls = (0..PROCESS_COUNT).map(|_| node.call_function(client, Bytes::new()));
        // All at once: the ceiling must hold under a burst, not on average.
        let answers = futures_util::future::join_all(calls).await;
        let failed: Vec<_> = answers
            .iter()
            .filter_map(|answer| answer.as_ref().err())
            .collect();
        if let Some(why) = failed.first() {
            comparison.add_remark(format!(
                "{} of {PROCESS_COUNT} processes failed: {why}",
                failed.len()
            ));
        }
        let case = format!(
            "{PROCESS_COUNT} concurrent processes, {}",
            round_trip_name(self.place)
        );
        let figure = |what, value, goal| GoalRatio {
            name: format!("{case}: {what}"),
            value,
            better: BetterDirection::Lower,
            goal,
        };
        comparison.add_figure(figure("failed", failed.len() as f64, 0.0));
        // From the server's log and not from the pool's own counters.
        let most = self.database.max_connections()? as f64;
        comparison.add_figure(figure(
            "database connections",
            most,
            f64::from(MAX_CONNECTIONS),
        ));
        comparison.add_remark(format!(
            "{case}: all ended after {:.2} s",
            begun.elapsed().as_secs_f64()
        ));
        Ok(())
    }

    /// Returns the variables of the database, and more.
    pub(super) fn function_variables(&self, more: &[(&str, &str)]) -> Value {
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

pub(super) fn to_sample(times: &[Duration]) -> RoundSample {
    let mut tally = RequestTally::default();
    times
        .iter()
        .for_each(|time| tally.record_outcome(Ok(*time)));
    RoundSample::from_tally(&tally, times.iter().sum(), Duration::ZERO)
}

pub(super) fn add_ratio_goal(
    comparison: &mut BenchComparison,
    case: &str,
    over: &str,
    under: &str,
    goal: f64,
) {
    let goal = RatioGoal {
        value: |row| row.p50_us,
        better: BetterDirection::Lower,
        goal,
    };
    comparison.add_ratio(
        &format!("p50, {case}, {over}/{under}"),
        case,
        over,
        under,
        goal,
    );
}

/// Copies a folder recursively.
pub(in crate::command) fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_folder(&entry.path(), &target)?,
            false => fs::copy(entry.path(), target).map(drop)?,
        }
    }
    Ok(())
}
