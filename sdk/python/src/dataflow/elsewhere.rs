//! What a job needs whose workers run elsewhere: identities, tickets, and a line to the rendezvous.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nearpath_dataflow::remote::{connection, identity, worker_name};
use nearpath_p2p::control::{self, Settings};
use nearpath_p2p::message::Pass;
use nearpath_p2p::ticket::{Job, Key, Ticket};
use pyo3::exceptions::{PyConnectionError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::wrong;

/// A job's authority lives as long as who runs the job; its certificate, a month.
const MONTH: f64 = 30.0 * 24.0 * 3600.0;
/// Python's signals are looked after so often while a line is waited for.
const SLICE: Duration = Duration::from_millis(200);

fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong(format!("{seconds} is no number of seconds")))
}

fn job(text: &str) -> PyResult<Job> {
    text.parse().map_err(|error| PyValueError::new_err(format!("{text:?}: {error}")))
}

/// Says who the workers of one job are. The key stays in this process.
#[pyclass(frozen, module = "nearpath.dataflow")]
pub(crate) struct Authority {
    job: Job,
    authority: nearpath_ca::Authority,
}

#[pymethods]
impl Authority {
    #[new]
    #[pyo3(signature = (job, seconds=MONTH))]
    fn new(job: &str, seconds: f64) -> PyResult<Self> {
        let job = self::job(job)?;
        let life = self::seconds(seconds)?;
        let authority = nearpath_ca::Authority::new(job.as_str(), SystemTime::now(), life).map_err(wrong)?;
        Ok(Self { job, authority })
    }

    /// As PEM.
    #[getter]
    fn certificate(&self) -> String {
        self.authority.to_pem()
    }

    /// A worker's, as JSON: `certificate`, `key` and `authority`, each as PEM.
    fn identity(&self, worker: &str, seconds: f64) -> PyResult<String> {
        identity::issue(&self.authority, &self.job, worker, self::seconds(seconds)?).map_err(wrong)
    }
}

/// The key of a rendezvous, from its file.
#[pyfunction]
pub(crate) fn rendezvous_key<'py>(py: Python<'py>, path: &str) -> PyResult<Bound<'py, PyBytes>> {
    let key = Key::read(Path::new(path)).map_err(|error| PyOSError::new_err(error.to_string()))?;
    Ok(PyBytes::new(py, &key.bytes()))
}

/// Lets a worker in, for so long.
#[pyfunction]
pub(crate) fn ticket(key: &[u8], job: &str, worker: &str, leader: bool, seconds: f64) -> PyResult<String> {
    let key = key.try_into().map_err(|_| wrong("a rendezvous' key has 32 bytes"))?;
    let job = self::job(job)?;
    let you = worker_name::identity(&job, worker).map_err(wrong)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let until = now.saturating_add(self::seconds(seconds)?).as_secs();
    Ok(Ticket { you, job, leader, until }.mint(&Key::new(key)).0)
}

/// A process's line to the rendezvous of its job.
#[pyclass(frozen, module = "nearpath.dataflow")]
pub(crate) struct Line(Mutex<Option<Arc<connection::Line>>>);

#[pymethods]
impl Line {
    /// `trust`: certificates of authorities as PEM; without them, the system's.
    #[new]
    #[pyo3(signature = (rendezvous, ticket, trust=None))]
    fn new(rendezvous: &str, ticket: &str, trust: Option<&str>) -> PyResult<Self> {
        let place: control::Place = rendezvous.parse().map_err(wrong)?;
        let tls = if place.tls { Some(control::trust(trust.map(str::as_bytes))?) } else { None };
        let settings = Settings { place, ticket: Pass(ticket.to_owned()), tls };
        let line = connection::Line::open(settings).map_err(wrong)?;
        Ok(Self(Mutex::new(Some(Arc::new(line)))))
    }

    /// Until it is there: whether it is. ConnectionError when it will not come any more.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let (line, until) = (self.open()?, Instant::now() + self::seconds(seconds)?);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let here = py.detach(|| line.wait(left.min(SLICE)));
            let here = here.map_err(|over| PyConnectionError::new_err(over.to_string()))?;
            if here || left <= SLICE {
                return Ok(here);
            }
            py.check_signals()?;
        }
    }

    /// To a worker, or to the job's leader; what was not said to the same one yet is not said any more.
    #[pyo3(signature = (to, text))]
    fn say(&self, to: Option<&str>, text: &str) -> PyResult<()> {
        self.open()?.say(to, text).map_err(wrong)
    }

    /// What has come: from whom, and what. ConnectionError when nothing will come any more.
    fn hear(&self, py: Python<'_>, seconds: f64) -> PyResult<Vec<(String, String)>> {
        let (line, until) = (self.open()?, Instant::now() + self::seconds(seconds)?);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let heard = py.detach(|| line.hear(left.min(SLICE)));
            let heard = heard.map_err(|over| PyConnectionError::new_err(over.to_string()))?;
            if !heard.is_empty() || left <= SLICE {
                return Ok(heard);
            }
            py.check_signals()?;
        }
    }

    /// Readable while something waits to be heard.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.open()?.bell().as_raw_fd())
    }

    /// Which kind of NAT stands before this machine, as people call it; takes a second.
    fn nat(&self, py: Python<'_>) -> PyResult<&'static str> {
        let line = self.open()?;
        py.detach(|| line.nat()).map_err(|error| PyConnectionError::new_err(error.to_string()))
    }

    /// Says what is still to be said, for two seconds at most.
    fn close(&self, py: Python<'_>) {
        let line = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| {
            if let Some(line) = line {
                line.close();
            }
        });
    }
}

impl Line {
    pub(super) fn open(&self) -> PyResult<Arc<connection::Line>> {
        let line = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        line.clone().ok_or_else(|| PyConnectionError::new_err("the line to the rendezvous is closed"))
    }
}
