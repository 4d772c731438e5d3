//! A variant that a load is sent to, and its CPU time in two parts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http::Method;

use super::super::measure::measure_cpu_apart;
use super::NodesArgs;
use crate::compare::LoadSample;
use crate::load::closed::ConnectionReuse;
use crate::load::{RequestTemplate, connection, epoll_client};

/// Length of a request's body, and of its response.
const BODY_BYTES: usize = 100;
/// Addition to the names of rows without the CPU time of functions.
pub(super) const WITHOUT_HANDLER: &str = " without handler";

/// A variant of a case.
pub(super) struct LoadTarget {
    pub(super) name: &'static str,
    pub(super) addr: SocketAddr,
    pub(super) path: String,
    /// Processes of the platform and of the functions, or their ancestors.
    pub(super) pids: Vec<u32>,
    /// Processes of the functions' own programs.
    pub(super) handlers: Vec<u32>,
    /// Set for nearpath, which needs a longer warm-up.
    pub(super) settles: bool,
}

/// A sample with the CPU time of all processes, and the same sample without that of functions.
#[derive(Clone, Copy)]
struct SamplePair {
    all: LoadSample,
    platform: LoadSample,
}

/// Targets of a case. Each has two rows from one measurement per round.
pub(super) struct TargetPairs<'a> {
    targets: &'a [LoadTarget],
    /// Samples of this round whose other half was returned, by row.
    waiting: RefCell<BTreeMap<usize, LoadSample>>,
}

impl LoadTarget {
    /// Returns the request of each call.
    pub(super) fn request(&self) -> io::Result<RequestTemplate> {
        Ok(RequestTemplate {
            method: Method::POST,
            body: Bytes::from_static(&[b'x'; BODY_BYTES]),
            ..RequestTemplate::for_get(self.addr, &self.path).map_err(io::Error::other)?
        })
    }

    /// Checks that the response is the request's body. The load counts any success.
    pub(super) async fn check_response(&self) -> io::Result<()> {
        let template = self.request()?;
        let answer = connection::send_once(template.addr, template.build_request()).await;
        let answer = answer
            .and_then(connection::LoadResponse::require_success)
            .map_err(|failure| io::Error::other(format!("{}: {failure}", self.name)))?;
        match answer.body == template.body {
            true => Ok(()),
            false => Err(io::Error::other(format!(
                "{}: the response is not the body of the request",
                self.name
            ))),
        }
    }

    async fn measure(&self, args: &NodesArgs, callers: usize) -> io::Result<SamplePair> {
        let window = match self.settles {
            true => args.measure.start_window_after(args.settle),
            false => args.measure.start_window(),
        };
        let template = self.request()?;
        let load = epoll_client::run(&template, callers, ConnectionReuse::KeepAlive, window);
        let (loaded, (all, handlers)) =
            measure_cpu_apart(load, window, &self.pids, &self.handlers).await;
        let loaded = loaded?;
        let sample = |cpu| LoadSample::from_load(&loaded, window, cpu);
        Ok(SamplePair {
            all: sample(all),
            platform: sample(all.saturating_sub(handlers)),
        })
    }
}

impl<'a> TargetPairs<'a> {
    pub(super) fn new(targets: &'a [LoadTarget]) -> Self {
        Self {
            targets,
            waiting: RefCell::default(),
        }
    }

    /// Returns the names of all rows: first with all CPU time, then without that of functions.
    pub(super) fn row_names(&self) -> Vec<String> {
        let names = || self.targets.iter().map(|target| target.name);
        let without = names().map(|name| format!("{name}{WITHOUT_HANDLER}"));
        names().map(str::to_owned).chain(without).collect()
    }

    /// Measures a row, or returns what the measurement of its other half has left.
    pub(super) async fn measure_row(
        &self,
        row: usize,
        args: &NodesArgs,
        callers: usize,
    ) -> io::Result<LoadSample> {
        if let Some(sample) = self.waiting.borrow_mut().remove(&row) {
            return Ok(sample);
        }
        let count = self.targets.len();
        let pair = self.targets[row % count].measure(args, callers).await?;
        let (own, other) = match row < count {
            true => (pair.all, pair.platform),
            false => (pair.platform, pair.all),
        };
        let other_row = (row + count) % (2 * count);
        self.waiting.borrow_mut().insert(other_row, other);
        Ok(own)
    }
}
