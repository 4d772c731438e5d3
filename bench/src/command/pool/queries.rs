//! PostgreSQL clients that keep their connections, and clients beside a bulk transfer of another function.
//!
//! `pgbench` runs unmodified: as a plain program, and as a function. CPU time is that of the process
//! between client and server.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::database::{DatabaseFixture, LoginMethod, to_sample};
use super::round_trip_name;
use crate::compare::{BenchComparison, BetterDirection, RatioGoal, ReportRow, RoundSample};
use crate::cpu::processes_cpu;
use crate::pool::pgbouncer::{AuthMethod, SESSIONS_DATABASE};
use crate::pool::setup::PoolNode;
use crate::remote::BenchError;

/// Script of all loads here, natively and in functions.
const SCRIPT: &str = "bench/functions/pgbench.py";
/// Protocols of pgbench's `-M`.
const QUERY_MODES: [&str; 3] = ["simple", "extended", "prepared"];
/// Length of a load.
const LOAD_SECONDS: u32 = 3;
/// Connections of a measurement beside a bulk transfer.
const CONNECT_COUNT: usize = 25;
/// Size of a bulk transfer.
const BULK_MEGABYTES: u32 = 100;
/// Function whose connections the adapter serves.
const ADAPTER_FUNCTION: &str = "queries";
/// Function whose connections the node forwards as plain TCP: without warm ones no socket is replaced.
const CARRIED_FUNCTION: &str = "queries-carried";
/// Function whose sockets are replaced by connections to the server.
const REPLACED_FUNCTION: &str = "queries-replaced";

/// Ways of a query to the server.
#[derive(Debug, Clone, Copy)]
enum QueryWay {
    Direct,
    Bouncer,
    Function(&'static str),
}

/// Ways with the names of their rows.
const QUERY_WAYS: [(QueryWay, &str); 5] = [
    (QueryWay::Direct, "direct"),
    (QueryWay::Bouncer, "pgbouncer, any"),
    (QueryWay::Function(ADAPTER_FUNCTION), "pool"),
    (QueryWay::Function(CARRIED_FUNCTION), "pool, carried TCP"),
    (QueryWay::Function(REPLACED_FUNCTION), "pool, replaced TCP"),
];

/// Output of the script.
#[derive(Deserialize)]
struct LoadFigures {
    answered: u64,
    p50_us: f64,
    p99_us: f64,
}

/// Measures queries over kept connections, and connections beside a bulk transfer.
pub(super) async fn measure(
    fixture: &DatabaseFixture<'_>,
    node: &PoolNode,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let bench = QueryBench { fixture, node };
    let place = round_trip_name(fixture.place);
    let wanted: Vec<_> = QUERY_MODES
        .into_iter()
        .map(|mode| (mode, format!("PostgreSQL, pgbench -S, {mode}, {place}")))
        .filter(|(_, case)| fixture.args.wants_case(case))
        .collect();
    if !wanted.is_empty() {
        bench.deploy_functions().await?;
        bench.run_native(fixture.host_port(), json!({ "mode": "initialize" }))?;
    }
    for (mode, case) in wanted {
        bench.measure_queries(mode, &case, comparison).await?;
    }
    let case = format!("PostgreSQL, libpq: connect and query beside COPY, {place}");
    if fixture.args.wants_case(&case) {
        bench.deploy_functions().await?;
        fixture.deploy_functions(node, "libpq").await?;
        bench.measure_beside_bulk(&case, comparison).await?;
    }
    Ok(())
}

struct QueryBench<'a> {
    fixture: &'a DatabaseFixture<'a>,
    node: &'a PoolNode,
}

impl QueryBench<'_> {
    async fn deploy_functions(&self) -> Result<(), BenchError> {
        let image = self.node.create_image("pgbench", |folder| {
            fs::copy(SCRIPT, folder.join("pgbench.py")).map(drop)
        })?;
        let host = self.fixture.host_port();
        for (name, egress) in [
            (ADAPTER_FUNCTION, self.fixture.egress_list()),
            (CARRIED_FUNCTION, format!("{host} protocol=tcp warm=0")),
            (REPLACED_FUNCTION, format!("{host} protocol=tcp")),
        ] {
            let variables = self.fixture.function_variables(&[]);
            self.node
                .deploy_function(name, &image, "python3 pgbench.py", &egress, variables)
                .await?;
        }
        Ok(())
    }

    async fn measure_queries(
        &self,
        mode: &str,
        case: &str,
        comparison: &mut BenchComparison,
    ) -> Result<(), BenchError> {
        let ways: Vec<_> = QUERY_WAYS
            .into_iter()
            .filter(|(way, _)| !matches!(way, QueryWay::Bouncer) || self.bouncer_pid().is_some())
            .collect();
        let names: Vec<_> = ways.iter().map(|(_, name)| *name).collect();
        comparison
            .measure_case(case, &names, async |index| {
                self.load(ways[index].0, mode).await
            })
            .await?;
        let cpu = |goal| lower_goal(|row| row.cpu_us_per_request, goal);
        for (over, under, goal) in [
            ("pool", "pgbouncer, any", 1.0),
            ("pool, carried TCP", "pool", 0.4),
            ("pool, replaced TCP", "pool", 0.4),
        ] {
            let name = format!("CPU a query, {case}, {over}/{under}");
            comparison.add_ratio(&name, case, over, under, cpu(goal));
        }
        Ok(())
    }

    fn bouncer_pid(&self) -> Option<u32> {
        let bouncer = self.fixture.bouncer_for(AuthMethod::Nothing)?;
        Some(bouncer.pid())
    }

    /// Runs pgbench once.
    async fn load(&self, way: QueryWay, mode: &str) -> Result<RoundSample, BenchError> {
        let proxy: Vec<u32> = match way {
            QueryWay::Direct => None,
            QueryWay::Bouncer => self.bouncer_pid(),
            QueryWay::Function(_) => Some(self.node.pid()),
        }
        .into_iter()
        .collect();
        let before = processes_cpu(&proxy);
        let printed = self
            .run(way, json!({ "mode": mode, "seconds": LOAD_SECONDS }))
            .await?;
        let cpu = processes_cpu(&proxy).saturating_sub(before);
        let figures: LoadFigures = serde_json::from_slice(&printed)?;
        Ok(RoundSample {
            n: figures.answered,
            failed: 0,
            p50_us: figures.p50_us,
            p99_us: figures.p99_us,
            rps: figures.answered as f64 / f64::from(LOAD_SECONDS),
            cpu_us_per_request: cpu.as_secs_f64() * 1e6 / figures.answered.max(1) as f64,
        })
    }

    async fn run(&self, way: QueryWay, plan: Value) -> Result<Vec<u8>, BenchError> {
        match way {
            QueryWay::Direct => self.run_native(self.fixture.host_port(), plan),
            QueryWay::Bouncer => {
                let mut plan = plan;
                if plan["mode"] == "prepared" {
                    plan["database"] = json!(SESSIONS_DATABASE);
                }
                let bouncer = self.fixture.bouncer_for(AuthMethod::Nothing);
                let address = bouncer.ok_or("PgBouncer is not running")?.address;
                self.run_native(&address.to_string(), plan)
            }
            QueryWay::Function(name) => self.run_in_function(name, plan).await,
        }
    }

    async fn run_in_function(&self, name: &str, mut plan: Value) -> Result<Vec<u8>, BenchError> {
        plan["host"] = json!(self.fixture.host_port());
        let body = serde_json::to_vec(&plan)?.into();
        Ok(self.node.call_function(name, body).await?.to_vec())
    }

    fn run_native(&self, host: &str, plan: Value) -> Result<Vec<u8>, BenchError> {
        let done = self.spawn_native(host, plan)?.wait_with_output()?;
        match done.status.success() {
            true => Ok(done.stdout),
            false => Err(format!("{SCRIPT}: {}", done.status).into()),
        }
    }

    fn spawn_native(&self, host: &str, mut plan: Value) -> Result<Child, BenchError> {
        plan["host"] = json!(host);
        let mut command = self.fixture.script_command(Path::new(SCRIPT));
        let mut program = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut input = program.stdin.take().ok_or("no standard input")?;
        // The script reads its plan to the end of the input.
        input.write_all(&serde_json::to_vec(&plan)?)?;
        Ok(program)
    }

    /// Measures new connections alone and beside a transfer: both directly, both through the adapter,
    /// and as a control through the adapter beside a direct transfer, which takes processors only.
    async fn measure_beside_bulk(
        &self,
        case: &str,
        comparison: &mut BenchComparison,
    ) -> Result<(), BenchError> {
        use LoginMethod::{Direct, Pool};
        const VARIANTS: [(LoginMethod, Option<LoginMethod>, &str); 5] = [
            (Direct, None, "direct, alone"),
            (Direct, Some(Direct), "direct, beside COPY"),
            (Pool, None, "pool, alone"),
            (Pool, Some(Pool), "pool, beside COPY"),
            (Pool, Some(Direct), "pool, beside direct COPY"),
        ];
        let names = VARIANTS.map(|(.., name)| name);
        comparison
            .measure_case(case, &names, async |index| {
                let (method, transfer, _) = VARIANTS[index];
                let connects = self.connect_times(method);
                let times = match transfer {
                    None => connects.await?,
                    Some(way) => self.beside_bulk(way, connects).await?,
                };
                Ok::<_, BenchError>(to_sample(&times))
            })
            .await?;
        for (over, under, goal) in [
            ("pool, beside COPY", "pool, alone", 1.3),
            ("pool, beside direct COPY", "pool, alone", f64::INFINITY),
            ("direct, beside COPY", "direct, alone", f64::INFINITY),
        ] {
            let name = format!("p50, {case}, {over}/{under}");
            comparison.add_ratio(&name, case, over, under, lower_goal(|row| row.p50_us, goal));
        }
        Ok(())
    }

    async fn connect_times(&self, method: LoginMethod) -> Result<Vec<Duration>, BenchError> {
        let mut times = Vec::new();
        for _ in 0..CONNECT_COUNT {
            times.push(
                self.fixture
                    .measure_connect(self.node, "libpq", method)
                    .await?,
            );
        }
        Ok(times)
    }

    /// Runs `connects` while transfers follow each other.
    async fn beside_bulk<T>(
        &self,
        method: LoginMethod,
        connects: impl Future<Output = Result<T, BenchError>>,
    ) -> Result<T, BenchError> {
        if method == LoginMethod::Direct {
            let mut transfer = self.spawn_native(self.fixture.host_port(), bulk_plan(100))?;
            let done = connects.await;
            transfer.kill()?;
            transfer.wait()?;
            return done;
        }
        let transfers = async {
            loop {
                self.run_in_function(ADAPTER_FUNCTION, bulk_plan(1)).await?;
            }
        };
        tokio::select! {
            done = connects => done,
            failed = transfers => failed,
        }
    }
}

/// Plans one transfer of this many times the size.
fn bulk_plan(times: u32) -> Value {
    json!({ "mode": "copy", "megabytes": times * BULK_MEGABYTES })
}

fn lower_goal(value: fn(&ReportRow) -> f64, goal: f64) -> RatioGoal {
    RatioGoal {
        value,
        better: BetterDirection::Lower,
        goal,
    }
}
