//! Workers on other machines: identities, tickets, and a connection to the rendezvous.

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

/// Default lifetime of the authority's certificate: a month. The authority ends with the process
/// that runs the job.
const DEFAULT_LIFETIME_SECONDS: f64 = 30.0 * 24.0 * 3600.0;
/// Interval of checks for Python signals during a wait.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(200);

fn parse_seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| value_error(format!("invalid number of seconds: {seconds}")))
}

fn parse_job(text: &str) -> PyResult<JobName> {
    text.parse()
        .map_err(|error| PyValueError::new_err(format!("{text:?}: {error}")))
}

/// Issues the identities of a job's workers. The key stays in this process.
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
        let job = parse_job(job)?;
        let lifetime = parse_seconds(seconds)?;
        let authority = nearpath_ca::Authority::new(job.as_str(), SystemTime::now(), lifetime)
            .map_err(value_error)?;
        Ok(Self { job, authority })
    }

    /// Certificate as PEM.
    #[getter]
    fn certificate(&self) -> String {
        self.authority.to_pem()
    }

    /// Issues a worker's identity as JSON: `certificate`, `key` and `authority`, each as PEM.
    fn issue_identity(&self, worker: &str, seconds: f64) -> PyResult<String> {
        identity::issue_identity(&self.authority, &self.job, worker, parse_seconds(seconds)?)
            .map_err(value_error)
    }
}

/// Reads the key of a rendezvous from its file.
#[pyfunction]
pub(crate) fn read_rendezvous_key<'py>(
    py: Python<'py>,
    path: &str,
) -> PyResult<Bound<'py, PyBytes>> {
    let key = RendezvousKey::read(Path::new(path))
        .map_err(|error| PyOSError::new_err(error.to_string()))?;
    Ok(PyBytes::new(py, &key.bytes()))
}

/// Issues a ticket that admits a worker for `seconds`.
#[pyfunction]
pub(crate) fn issue_ticket(
    key: &[u8],
    job: &str,
    worker: &str,
    leader: bool,
    seconds: f64,
) -> PyResult<String> {
    let key = key
        .try_into()
        .map_err(|_| value_error("invalid rendezvous key: expected 32 bytes"))?;
    let job = parse_job(job)?;
    let id = worker_name::to_spiffe_id(&job, worker).map_err(value_error)?;
    // Tickets use wall-clock time, because other machines check them.
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let until = now.saturating_add(parse_seconds(seconds)?).as_secs();
    Ok(WorkerTicket {
        worker: id,
        job,
        leader,
        until,
    }
    .mint(&RendezvousKey::new(key))
    .0)
}

/// Connection of a process to the rendezvous of its job.
#[pyclass(frozen, module = "nearpath.dataflow")]
pub(crate) struct RendezvousConnection(Mutex<Option<Arc<connection::RendezvousConnection>>>);

#[pymethods]
impl RendezvousConnection {
    /// Opens the connection. `trust`: certificates of authorities as PEM; without it, the system's.
    #[new]
    #[pyo3(signature = (rendezvous, ticket, trust=None))]
    fn new(rendezvous: &str, ticket: &str, trust: Option<&str>) -> PyResult<Self> {
        let url: control::RendezvousUrl = rendezvous.parse().map_err(value_error)?;
        // Without TLS no certificate is read, so plain `ws` works without a trust store.
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

    /// Waits until the connection is open, and returns whether it is. Raises ConnectionError after
    /// its end.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let (connection, until) = (self.connection()?, Instant::now() + parse_seconds(seconds)?);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // Waits in slices, so that Ctrl-C is handled.
            let is_connected =
                py.detach(|| connection.wait_connected(left.min(SIGNAL_CHECK_INTERVAL)));
            let is_connected =
                is_connected.map_err(|error| PyConnectionError::new_err(error.to_string()))?;
            if is_connected || left <= SIGNAL_CHECK_INTERVAL {
                return Ok(is_connected);
            }
            py.check_signals()?;
        }
    }

    /// Sends to a worker, or to the job's leader. Replaces an unsent message to the same receiver.
    #[pyo3(signature = (to, text))]
    fn send(&self, to: Option<&str>, text: &str) -> PyResult<()> {
        self.connection()?
            .send_message(to, text)
            .map_err(value_error)
    }

    /// Returns received messages with their senders. Raises ConnectionError after the end.
    fn receive(&self, py: Python<'_>, seconds: f64) -> PyResult<Vec<(String, String)>> {
        let (connection, until) = (self.connection()?, Instant::now() + parse_seconds(seconds)?);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let messages =
                py.detach(|| connection.receive_messages(left.min(SIGNAL_CHECK_INTERVAL)));
            let messages =
                messages.map_err(|error| PyConnectionError::new_err(error.to_string()))?;
            if !messages.is_empty() || left <= SIGNAL_CHECK_INTERVAL {
                return Ok(messages);
            }
            py.check_signals()?;
        }
    }

    /// Returns the file descriptor that is readable while messages wait.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.connection()?.event_fd().as_raw_fd())
    }

    /// Returns the kind of NAT before this machine; takes a second.
    fn nat_kind(&self, py: Python<'_>) -> PyResult<&'static str> {
        let connection = self.connection()?;
        py.detach(|| connection.nat_kind())
            .map_err(|error| PyConnectionError::new_err(error.to_string()))
    }

    /// Sends the remaining messages, for at most 2 s, and closes.
    fn close(&self, py: Python<'_>) {
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Closing sends remaining messages, which may take 2 s.
        py.detach(|| {
            if let Some(connection) = connection {
                connection.close();
            }
        });
    }
}

impl RendezvousConnection {
    pub(super) fn connection(&self) -> PyResult<Arc<connection::RendezvousConnection>> {
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        connection.clone().ok_or_else(|| {
            PyConnectionError::new_err(
                "the connection to the rendezvous is closed: open another one",
            )
        })
    }
}
