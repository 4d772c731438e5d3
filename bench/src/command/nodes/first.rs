//! First calls of instances that have just become ready on another machine. Their start is no part of
//! the time.
//!
//! All functions are updated at once in each round. When each of them runs in a new process, each gets
//! one call, on a connection of the client that has served calls of another function before.

use std::cell::{Cell, RefCell};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use http::Request;
use http_body_util::Full;
use tokio::time::Instant;

use super::calls::{NEW_PORT, NginxPair};
use super::ready::RollingFunctions;
use super::{NodesArgs, delay_name, max_goal, on_first_machine};

use crate::compare::{BenchComparison, RoundSample};
use crate::load::connection::LoadConnection;
use crate::nodes::machines::MachineLab;
use crate::peers::plain_handler::{HandlerLanguage, PlainHandler};
use crate::remote::BenchError;
use crate::tally::RequestTally;

const VARIANTS: [&str; 3] = [FIRST, WARM, NEW];
const FIRST: &str = "nearpath, first call";
const WARM: &str = "nearpath, warm call";
const NEW: &str = "nginx, new TLS 1.3";

/// Measures the case of a delay.
pub(super) fn measure(
    args: &NodesArgs,
    delay: Duration,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let lab = MachineLab::new(&["m0", "m1"], delay)?;
    on_first_machine(&lab, async || {
        let handler = PlainHandler::build(HandlerLanguage::C)?;
        let functions = RollingFunctions::start(lab.machines(), &handler, args.starts).await?;
        // One handler: its place in the names is the first.
        let nginx = NginxPair::start(lab.machines(), std::slice::from_ref(&handler)).await?;
        let fixture = FirstCalls {
            functions,
            version: Cell::new(0),
            connection: RefCell::new(None),
            _nginx: nginx,
        };
        let case = format!("first call, {}", delay_name(delay));
        let one = async |variant: usize| fixture.measure(VARIANTS[variant]).await;
        comparison.measure_case(&case, &VARIANTS, one).await?;
        add_goals(comparison, &case);
        Ok(())
    })
}

fn add_goals(comparison: &mut BenchComparison, case: &str) {
    for (under, goal) in [(WARM, 1.15), (NEW, 0.55)] {
        let name = format!("p50, {case}, nearpath/{under}");
        comparison.add_ratio(&name, case, FIRST, under, max_goal(|row| row.p50_us, goal));
    }
}

struct FirstCalls {
    functions: RollingFunctions,
    /// Version of the functions that was started last.
    version: Cell<u64>,
    /// Connection of the client to the gateway of its machine.
    connection: RefCell<Option<LoadConnection>>,
    _nginx: NginxPair,
}

impl FirstCalls {
    async fn measure(&self, variant: &str) -> Result<RoundSample, BenchError> {
        if variant == NEW {
            let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, NEW_PORT));
            let mut connection = open(addr).await?;
            let count = self.functions.names().len();
            let paths = vec!["/function/handler-0".to_owned(); count + 1];
            return call_each(&mut connection, addr, &paths).await;
        }
        if variant == FIRST {
            self.version.set(self.version.get() + 1);
            self.functions.replace_all(self.version.get()).await?;
        }
        let addr = self.functions.nodes().entry().addr();
        let mut connection = match self.connection.take() {
            Some(connection) if connection.is_open() => connection,
            _ => open(addr).await?,
        };
        let own = self.functions.names().iter();
        let paths = std::iter::once("/function/steady".to_owned())
            .chain(own.map(|name| format!("/function/{name}")));
        let sample = call_each(&mut connection, addr, &paths.collect::<Vec<_>>()).await?;
        self.connection.replace(Some(connection));
        Ok(sample)
    }
}

async fn open(addr: SocketAddr) -> Result<LoadConnection, BenchError> {
    let opened = LoadConnection::open(addr).await;
    opened.map_err(|failure| format!("{addr}: {failure}").into())
}

/// Calls each path once. The first call is not counted: it readies the connections between machines.
async fn call_each(
    connection: &mut LoadConnection,
    addr: SocketAddr,
    paths: &[String],
) -> Result<RoundSample, BenchError> {
    let (mut tally, mut time) = (RequestTally::default(), Duration::ZERO);
    for (number, path) in paths.iter().enumerate() {
        let request = Request::get(path.as_str())
            .header("host", addr.to_string())
            .body(Full::default())?;
        let begun = Instant::now();
        let answer = connection.send_request(request).await;
        let outcome = answer
            .and_then(|answer| answer.require_success())
            .map(|_| begun.elapsed());
        if number > 0 {
            time += outcome.as_ref().copied().unwrap_or_default();
            tally.record_outcome(outcome);
        }
    }
    Ok(RoundSample::from_tally(&tally, time, Duration::ZERO))
}
