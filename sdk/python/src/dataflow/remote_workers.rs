//! What a job needs whose workers run elsewhere: identities, tickets, and a line to the rendezvous.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nearpath_dataflow::remote::{connection, identity, worker_name};
use nearpath_p2p::control::{self, ControlSettings};
use nearpath_p2p::message::SignedToken;
use nearpath_p2p::ticket::{JobName, RendezvousKey, WorkerTicket};
use pyo3::exceptions::{PyConnectionError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::value_error;

/// A job's authority lives as long as who runs the job; its certificate, a month.
const DEFAULT_LIFETIME_SECONDS: f64 = 30.0 * 24.0 * 3600.0;
/// Python's signals are looked after so often while a line is waited for.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(200);

fn parse_seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| value_error(format!("{seconds} is no number of seconds")))
}

fn parse_job(text: &str) -> PyResult<JobName> {
    text.parse()
        .map_err(|error| PyValueError::new_err(format!("{text:?}: {error}")))
}

/// Says who the workers of one job are. The key stays in this process.
#[pyclass(frozen, module = "nearpath.dataflow")]
pub(crate) struct Authority {
    job: JobName,
    authority: nearpath_ca::Authority,
}

#[pymethods]
impl Authority {
    #[new]
    #[pyo3(signature = (job, seconds=DEFAULT_LIFETIME_SECONDS))]
    fn new(job: &str, seconds: f64) -> PyResult<Self> {
        let job = self::parse_job(job)?;
        let life = self::parse_seconds(seconds)?;
        let authority = nearpath_ca::Authority::new(job.as_str(), SystemTime::now(), life)
            .map_err(value_error)?;
        Ok(Self { job, authority })
    }

    /// As PEM.
    #[getter]
    fn certificate(&self) -> String {
        self.authority.to_pem()
    }

    /// A worker's, as JSON: `certificate`, `key` and `authority`, each as PEM.
    fn identity(&self, worker: &str, seconds: f64) -> PyResult<String> {
        identity::issue_identity(
            &self.authority,
            &self.job,
            worker,
            self::parse_seconds(seconds)?,
        )
        .map_err(value_error)
    }
}

/// The key of a rendezvous, from its file.
#[pyfunction]
pub(crate) fn rendezvous_key<'py>(py: Python<'py>, path: &str) -> PyResult<Bound<'py, PyBytes>> {
    let key = RendezvousKey::read(Path::new(path))
        .map_err(|error| PyOSError::new_err(error.to_string()))?;
    Ok(PyBytes::new(py, &key.bytes()))
}

/// Lets a worker in, for so long.
#[pyfunction]
pub(crate) fn ticket(
    key: &[u8],
    job: &str,
    worker: &str,
    leader: bool,
    seconds: f64,
) -> PyResult<String> {
    let key = key
        .try_into()
        .map_err(|_| value_error("a rendezvous' key has 32 bytes"))?;
    let job = self::parse_job(job)?;
    let you = worker_name::to_spiffe_id(&job, worker).map_err(value_error)?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let until = now.saturating_add(self::parse_seconds(seconds)?).as_secs();
    Ok(WorkerTicket {
        you,
        job,
        leader,
        until,
    }
    .mint(&RendezvousKey::new(key))
    .0)
}

/// A process's line to the rendezvous of its job.
#[pyclass(frozen, module = "nearpath.dataflow")]
pub(crate) struct Line(Mutex<Option<Arc<connection::RendezvousConnection>>>);

#[pymethods]
impl Line {
    /// `trust`: certificates of authorities as PEM; without them, the system's.
    #[new]
    #[pyo3(signature = (rendezvous, ticket, trust=None))]
    fn new(rendezvous: &str, ticket: &str, trust: Option<&str>) -> PyResult<Self> {
        let url: control::RendezvousUrl = rendezvous.parse().map_err(value_error)?;
        let tls = if url.tls {
            Some(control::client_config(trust.map(str::as_bytes))?)
        } else {
            None
        };
        let settings = ControlSettings {
            url,
            ticket: SignedToken(ticket.to_owned()),
            tls,
        };
        let connection = connection::RendezvousConnection::open(settings).map_err(value_error)?;
        Ok(Self(Mutex::new(Some(Arc::new(connection)))))
    }

    /// Until it is there: whether it is. ConnectionError when it will not come any more.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let (connection, until) = (
            self.connection()?,
            Instant::now() + self::parse_seconds(seconds)?,
        );
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let here = py.detach(|| connection.wait_connected(left.min(SIGNAL_CHECK_INTERVAL)));
            let here = here.map_err(|over| PyConnectionError::new_err(over.to_string()))?;
            if here || left <= SIGNAL_CHECK_INTERVAL {
                return Ok(here);
            }
            py.check_signals()?;
        }
    }

    /// To a worker, or to the job's leader; what was not said to the same one yet is not said any more.
    #[pyo3(signature = (to, text))]
    fn say(&self, to: Option<&str>, text: &str) -> PyResult<()> {
        self.connection()?
            .send_message(to, text)
            .map_err(value_error)
    }

    /// What has come: from whom, and what. ConnectionError when nothing will come any more.
    fn hear(&self, py: Python<'_>, seconds: f64) -> PyResult<Vec<(String, String)>> {
        let (connection, until) = (
            self.connection()?,
            Instant::now() + self::parse_seconds(seconds)?,
        );
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let messages =
                py.detach(|| connection.receive_messages(left.min(SIGNAL_CHECK_INTERVAL)));
            let messages = messages.map_err(|over| PyConnectionError::new_err(over.to_string()))?;
            if !messages.is_empty() || left <= SIGNAL_CHECK_INTERVAL {
                return Ok(messages);
            }
            py.check_signals()?;
        }
    }

    /// Readable while something waits to be heard.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.connection()?.event_fd().as_raw_fd())
    }

    /// Which kind of NAT stands before this machine, as people call it; takes a second.
    fn nat(&self, py: Python<'_>) -> PyResult<&'static str> {
        let connection = self.connection()?;
        py.detach(|| connection.nat_kind())
            .map_err(|error| PyConnectionError::new_err(error.to_string()))
    }

    /// Says what is still to be said, for two seconds at most.
    fn close(&self, py: Python<'_>) {
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| {
            if let Some(connection) = connection {
                connection.close();
            }
        });
    }
}

impl Line {
    pub(super) fn connection(&self) -> PyResult<Arc<connection::RendezvousConnection>> {
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        connection
            .clone()
            .ok_or_else(|| PyConnectionError::new_err("the line to the rendezvous is closed"))
    }
}
