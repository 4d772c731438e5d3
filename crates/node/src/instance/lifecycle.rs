//! The lifecycle of one instance: copy the folder, launch, read its notes, serve, stop, clean up.
//!
//! One task per instance. The task decides nothing about other instances. It reports
//! [`InstanceEvent`]s to the agent. The last one is always [`InstanceEvent::Removed`], sent when
//! nothing of the instance is left.

use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use nearpath_types::{DesiredFunction, InstanceAddr, InstanceId, StartFailureCause, StartPhase};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::InstanceTask;
use super::ending::{EndEvidence, EndReport, InstanceEnding, memory_cause};
use super::notes::{InstanceNote, NoteReader, ServerNote};
use super::requests::{InstanceRequests, SleepRequest, StopRequest};
use super::sleep::{SETTLE_TIMEOUT, SleepState, freeze_idle};
use super::variables;
use crate::artifact::{ArtifactKey, ArtifactStore};
use crate::gateway_threads::GatewayThreads;
use crate::identity::{CallerInstance, IdentityContext, IdentityService};
use crate::logs::LogStore;
use crate::machine::{
    InstanceMachine, InstanceProcess, InstanceSpec, ProcessExit, StartedInstance,
};

/// Maximum time to drain a dead instance's pipes: an escaped process may keep them open.
const DRAIN_OUTPUT_GRACE: Duration = Duration::from_millis(500);
/// Maximum time for an instance to end after it reported a failure.
const FAILED_GRACE: Duration = Duration::from_secs(3);

/// Prefix of the node's own lines in a function's log.
const NODE_PREFIX: &str = "nearpath: ";

/// An event of an instance, for the agent.
pub enum InstanceEvent {
    /// The process runs.
    Launched {
        /// Id of the instance.
        id: InstanceId,
        /// Process id of its watchdog.
        pid: u32,
        /// Handle to measure it.
        process: Arc<dyn InstanceProcess>,
    },
    /// Its identity was issued, and callers over QUIC use this name.
    Named(InstanceId, Arc<str>),
    /// A phase of its start ended.
    Phase(InstanceId, StartPhase),
    /// Its own server may be called without its watchdog.
    Server(InstanceId, ServerNote),
    /// The instance may be called.
    Ready(InstanceId),
    /// The kernel killed one of its processes for lack of memory, and it goes on.
    OomKill(InstanceId),
    /// The instance goes on, but something is wrong with it; for the administrator.
    Remark(InstanceId, String),
    /// It was frozen, and goes on.
    Thawed(InstanceId),
    /// It was not frozen, because its calls did not end or the kernel refused: it stops instead.
    NotFrozen(InstanceId),
    /// Its processes have ended, so nothing answers. Cleanup follows, which may take a while.
    Exited(InstanceId),
    /// Nothing of the instance is left.
    Removed(InstanceId, InstanceEnding),
}

impl InstanceEvent {
    /// Returns the instance that it concerns.
    pub(crate) fn instance(&self) -> InstanceId {
        match self {
            Self::Launched { id, .. } => *id,
            Self::Named(id, _)
            | Self::Phase(id, _)
            | Self::Server(id, _)
            | Self::Ready(id)
            | Self::OomKill(id)
            | Self::Remark(id, _)
            | Self::Thawed(id)
            | Self::NotFrozen(id)
            | Self::Exited(id)
            | Self::Removed(id, _) => *id,
        }
    }
}

/// State that all instances of a node share.
#[derive(Clone)]
pub struct LifecycleContext {
    /// The machine that runs them.
    pub machine: Arc<dyn InstanceMachine>,
    /// Copies of functions' folders.
    pub artifacts: Arc<ArtifactStore>,
    /// Issuer of identities.
    pub identities: IdentityService,
    /// State for identity sessions.
    pub(crate) identity_context: IdentityContext,
    /// The gateway's listeners inside instances.
    pub(crate) gateway_threads: GatewayThreads,
    /// Store of their output.
    pub logs: LogStore,
    /// Receiver of their events.
    pub events: mpsc::UnboundedSender<InstanceEvent>,
}

/// Task of one instance.
pub struct Lifecycle {
    /// Spec of the instance; its folder is set during the launch.
    spec: InstanceSpec,
    /// Revision that it runs.
    artifact: ArtifactKey,
    /// Image to copy on first use.
    image: String,
    /// Maximum time to become ready.
    start_timeout: Duration,
    /// The tenant's memory limit, for texts.
    memory_limit: Option<String>,
    /// Set if the instance gets an identity.
    has_identity: bool,
    context: LifecycleContext,
}

/// Tasks that read both outputs.
type OutputTasks = [tokio::task::JoinHandle<()>; 2];

/// Reason for the end of watching a process.
enum WatchOutcome {
    Exited(ProcessExit),
    TooSlow,
    /// Without a request the node itself has ended.
    StopRequested(Option<StopRequest>),
}

impl Lifecycle {
    /// Creates the lifecycle of one instance of `desired`, before its start.
    pub fn new(spec: InstanceSpec, desired: &DesiredFunction, context: LifecycleContext) -> Self {
        let function = &desired.spec;
        Self {
            artifact: (function.id(), desired.revision),
            image: function.image.clone(),
            start_timeout: variables::start_timeout(function),
            memory_limit: function
                .limits
                .as_ref()
                .and_then(|limits| limits.memory.clone()),
            has_identity: spec
                .environment
                .contains_key(variables::IDENTITY_VARIABLE.0),
            spec,
            context,
        }
    }

    /// Runs the lifecycle. Dropping the sender of `requests.stop` without a request ends the instance at
    /// once.
    pub async fn run(mut self, requests: InstanceRequests) {
        let ending = match self.launch_instance().await {
            Ok(launched) => self.serve_until_end(launched, requests).await,
            Err(ending) => ending,
        };
        self.send_event(InstanceEvent::Removed(self.spec.id, ending));
    }

    /// Sends an event. Without an agent there is no receiver.
    fn send_event(&self, event: InstanceEvent) {
        let _ = self.context.events.send(event);
    }

    fn send_phase(&self, name: &str, since: Instant) {
        let phase = StartPhase {
            name: name.to_owned(),
            took: since.elapsed(),
        };
        self.send_event(InstanceEvent::Phase(self.spec.id, phase));
    }

    async fn launch_instance(&mut self) -> Result<StartedInstance, InstanceEnding> {
        let started = Instant::now();
        // The copy comes first: a broken folder must not cost a launch.
        let folder = self
            .context
            .artifacts
            .get_folder(&self.artifact, &self.image)
            .await;
        self.spec.folder = folder.map_err(|error| {
            InstanceEnding::without_folder(error.to_string(), error.is_lasting())
        })?;
        self.send_phase("artifact", started);
        let (machine, spec, started) = (
            self.context.machine.clone(),
            self.spec.clone(),
            Instant::now(),
        );
        // A launch takes some milliseconds of system calls.
        let launched = tokio::task::spawn_blocking(move || machine.launch_instance(&spec)).await;
        let launched = launched.expect("launching does not panic");
        self.send_phase("spawn", started);
        launched.map_err(|error| {
            InstanceEnding::refused_by_node(format!(
                "the node could not start the instance: {error}; see `nearpath doctor`"
            ))
        })
    }

    async fn serve_until_end(
        &self,
        launched: StartedInstance,
        requests: InstanceRequests,
    ) -> InstanceEnding {
        let StartedInstance {
            pid,
            stdout,
            stderr,
            notes,
            identity,
            gateway_listener,
            remarks,
            process,
        } = launched;
        // otherwise the socket closes here
        let _identity_task = self
            .has_identity
            .then(|| self.spawn_identity_task(identity));
        let _listener_task = gateway_listener.map(|socket| self.spawn_listener_task(socket));
        self.send_event(InstanceEvent::Launched {
            id: self.spec.id,
            pid,
            process: process.clone(),
        });
        // Before the output is read, so that the remarks come first in the log.
        self.log_unenforced_limits();
        remarks.iter().for_each(|remark| self.log_remark(remark));
        let outputs: OutputTasks = [stdout, stderr].map(|output| {
            tokio::spawn(self.context.logs.clone().collect_output(
                self.spec.function.clone(),
                self.spec.id,
                output,
            ))
        });
        let ending = match NoteReader::new(notes) {
            Ok(notes) => self.watch_process(&process, notes, requests, outputs).await,
            Err(error) => {
                process.kill();
                process.wait_exit().await;
                InstanceEnding::refused_by_node(format!(
                    "the node cannot read the instance's notes: {error}"
                ))
            }
        };
        // a panic there is printed
        let _ = tokio::task::spawn_blocking(move || process.release_resources()).await;
        ending
    }

    /// Spawns the session that sends the instance its identity, in parallel to its start.
    fn spawn_identity_task(&self, socket: OwnedFd) -> InstanceTask {
        let (function, id) = (self.spec.function.clone(), self.spec.id);
        let LifecycleContext { events, logs, .. } = self.context.clone();
        let on_identity = move |identity_result: Result<Arc<str>, String>| match identity_result {
            Ok(name) => drop(events.send(InstanceEvent::Named(id, name))),
            Err(why) => {
                tracing::warn!(%function, instance = %id, "instance has no certificate and is not called: {why}");
                logs.push_line(
                    &function,
                    id,
                    format!(
                        "{NODE_PREFIX}the instance has no certificate and is not called: {why}"
                    ),
                );
            }
        };
        let intercepted_eip = self.spec.eip.filter(|_| self.spec.local_gateway.is_some());
        let addr =
            intercepted_eip.map(|eip| InstanceAddr((eip.0, variables::WATCHDOG_PORT).into()));
        let caller = CallerInstance {
            function: self.spec.function.clone(),
            instance: id,
            addr,
        };
        InstanceTask::spawn(self.context.identities.clone().run_session(
            caller,
            socket,
            self.context.identity_context.clone(),
            on_identity,
        ))
    }

    /// Spawns the task that has the gateway serve its listener inside the instance.
    fn spawn_listener_task(&self, socket: OwnedFd) -> InstanceTask {
        let (eip, threads) = (self.spec.eip, self.context.gateway_threads.clone());
        let domain = self.spec.placed_domain.clone();
        let (logs, function, id) = (
            self.context.logs.clone(),
            self.spec.function.clone(),
            self.spec.id,
        );
        InstanceTask::spawn(async move {
            let Some(eip) = eip else { return };
            let serving =
                tokio::task::spawn_blocking(move || threads.serve_next(socket, eip, domain));
            match serving.await.expect("receiving a socket does not panic") {
                Ok(None) => {}                                     // it ended while it started
                Ok(Some(_served)) => std::future::pending().await, // until the instance has ended
                Err(error) => {
                    let text = format!("{NODE_PREFIX}calls to other functions fail: {error}");
                    logs.push_line(&function, id, text);
                }
            }
        })
    }

    fn unenforced_limits(&self) -> Vec<&'static str> {
        self.context.machine.unenforced_limits(&self.spec.limits)
    }

    /// Logs limits that are not enforced, so that tenants do not rely on them.
    fn log_unenforced_limits(&self) {
        for limit in self.unenforced_limits() {
            self.log_remark(&format!(
                "{limit} is not enforced on this node; `nearpath doctor` explains why"
            ));
        }
    }

    /// Writes a line of the node into the function's log.
    fn log_remark(&self, text: &str) {
        self.context.logs.push_line(
            &self.spec.function,
            self.spec.id,
            format!("{NODE_PREFIX}{text}"),
        );
    }

    async fn watch_process(
        &self,
        process: &Arc<dyn InstanceProcess>,
        mut notes: NoteReader,
        mut requests: InstanceRequests,
        outputs: OutputTasks,
    ) -> InstanceEnding {
        let (mut start, mut exited) = (StartProgress::default(), process.wait_exit());
        let outcome = self
            .wait_for_outcome(process, &mut notes, &mut start, &mut exited, &mut requests)
            .await;
        let process = &**process;
        let exit = match outcome {
            WatchOutcome::Exited(exit) => Some(exit),
            WatchOutcome::TooSlow => {
                process.kill();
                exited.await;
                None
            }
            WatchOutcome::StopRequested(request) => {
                self.stop_process(process, exited, request.filter(|_| start.handles_signals))
                    .await;
                // Before the output is drained: callers must leave the dead instance at once.
                self.send_event(InstanceEvent::Exited(self.spec.id));
                self.drain_output(process, &mut notes, &mut start, outputs)
                    .await;
                return InstanceEnding::Stopped;
            }
        };
        self.send_event(InstanceEvent::Exited(self.spec.id));
        self.drain_output(process, &mut notes, &mut start, outputs)
            .await;
        // Kills that the instance survived do not explain its end.
        let last_kills = process
            .oom_kills()
            .map(|total| total.saturating_sub(start.reported_oom_kills));
        self.explain_end(exit, start, last_kills)
    }

    /// Handles notes until something ends the instance.
    async fn wait_for_outcome(
        &self,
        process: &Arc<dyn InstanceProcess>,
        notes: &mut NoteReader,
        start: &mut StartProgress,
        exited: &mut BoxFuture<'_, ProcessExit>,
        requests: &mut InstanceRequests,
    ) -> WatchOutcome {
        let mut deadline = pin!(sleep(self.start_timeout));
        let mut sleep_state = SleepState::Settled;
        loop {
            tokio::select! {
                // Notes first: a failure that was reported before the exit explains it.
                biased;
                note = notes.next_note(), if !start.is_closed => {
                    if self.handle_note(note, start, &**process) {
                        // The failure is known, so the rest of the start timeout is pointless.
                        deadline.as_mut().reset(tokio::time::Instant::now() + FAILED_GRACE);
                    }
                }
                // After the notes, and before a stop: an instance that died by itself is reported
                // as such.
                exit = &mut *exited => return WatchOutcome::Exited(exit),
                request = &mut requests.stop => return WatchOutcome::StopRequested(request.ok()),
                Some(request) = requests.sleep.recv() => {
                    sleep_state = self.handle_sleep_request(request, process);
                }
                // Freezing is no branch: a request to thaw would drop it half done.
                idle = sleep_state.wait_idle() => {
                    if let Err(request) = freeze_idle(process, idle).await {
                        self.send_event(InstanceEvent::NotFrozen(self.spec.id));
                        return WatchOutcome::StopRequested(Some(request));
                    }
                }
                () = &mut deadline, if start.is_overdue() => return WatchOutcome::TooSlow,
            }
        }
    }

    /// Begins to freeze the instance, or lets it go on at once. One that cannot go on is killed.
    fn handle_sleep_request(
        &self,
        request: SleepRequest,
        process: &Arc<dyn InstanceProcess>,
    ) -> SleepState {
        match request {
            SleepRequest::Freeze(request) => SleepState::begin(process.clone(), request),
            SleepRequest::Thaw => {
                match process.thaw() {
                    Ok(()) => self.send_event(InstanceEvent::Thawed(self.spec.id)),
                    Err(error) => {
                        self.log_remark(&format!("the instance cannot be thawed: {error}"));
                        process.kill();
                    }
                }
                SleepState::Settled
            }
        }
    }

    /// Handles one note; returns whether a failed instance now has to end.
    fn handle_note(
        &self,
        note: Option<InstanceNote>,
        start: &mut StartProgress,
        process: &dyn InstanceProcess,
    ) -> bool {
        start.handles_signals |= note.as_ref().is_some_and(InstanceNote::is_of_watchdog);
        match note {
            Some(InstanceNote::Phase(phase)) if !start.ready => {
                self.send_event(InstanceEvent::Phase(self.spec.id, phase))
            }
            Some(InstanceNote::Server(server)) if !start.ready => {
                self.send_event(InstanceEvent::Server(self.spec.id, server))
            }
            Some(InstanceNote::Ready) if !start.ready && start.failure.is_none() => {
                start.ready = true;
                self.send_event(InstanceEvent::Ready(self.spec.id));
            }
            Some(InstanceNote::Failed(text)) => {
                start.failure.get_or_insert(text);
                return true;
            }
            Some(InstanceNote::OomKill) => self.report_oom_kill(start, process.oom_kills()),
            Some(InstanceNote::Remark(text)) => {
                self.send_event(InstanceEvent::Remark(self.spec.id, text))
            }
            Some(InstanceNote::Phase(_) | InstanceNote::Server(_) | InstanceNote::Ready) => {}
            None => start.is_closed = true,
        }
        false
    }

    /// Reports a kill for lack of memory that the instance survived, if the kernel counted one. The
    /// note alone proves nothing: it comes from inside the instance.
    fn report_oom_kill(&self, start: &mut StartProgress, total: Option<u64>) {
        if total.unwrap_or(0) <= start.reported_oom_kills {
            return;
        }
        // Not all that are new: the next one may have ended the instance, before this note was
        // read.
        start.reported_oom_kills += 1;
        let cause = memory_cause(self.enforced_memory_limit().as_deref());
        self.send_event(InstanceEvent::OomKill(self.spec.id));
        self.send_event(InstanceEvent::Remark(
            self.spec.id,
            format!("the kernel killed a process of the instance, because {cause}"),
        ));
    }

    /// Returns the tenant's memory limit, unless this machine does not enforce it.
    fn enforced_memory_limit(&self) -> Option<String> {
        self.memory_limit
            .clone()
            .filter(|_| !self.unenforced_limits().contains(&"limits.memory"))
    }

    /// Withdraws the instance, asks it to stop, and kills it at the timeout. Without a request it
    /// is killed at once.
    async fn stop_process(
        &self,
        process: &dyn InstanceProcess,
        mut exited: BoxFuture<'_, ProcessExit>,
        request: Option<StopRequest>,
    ) {
        if let Some(StopRequest {
            withdrawn,
            timeout: limit,
        }) = request
        {
            tokio::select! {
                // Nothing is left to stop.
                _ = &mut exited => return,
                _ = timeout(SETTLE_TIMEOUT, withdrawn) => {}
            }
            // A frozen process takes no signal but SIGKILL.
            let _ = process.thaw();
            // The gateway has let go, so only open requests delay the end.
            process.terminate();
            if timeout(limit, &mut exited).await.is_ok() {
                return;
            }
            let text =
                format!("{NODE_PREFIX}the instance did not stop within {limit:?} and was killed");
            self.context
                .logs
                .push_line(&self.spec.function, self.spec.id, text);
        }
        process.kill();
        exited.await;
    }

    /// Reads the remaining output of the dead instance.
    async fn drain_output(
        &self,
        process: &dyn InstanceProcess,
        notes: &mut NoteReader,
        start: &mut StartProgress,
        mut outputs: OutputTasks,
    ) {
        let rest = async {
            while !start.is_closed {
                self.handle_late_note(notes.next_note().await, start, process);
            }
            for output in &mut outputs {
                let _ = output.await; // a panic there is printed
            }
        };
        let _ = timeout(DRAIN_OUTPUT_GRACE, rest).await;
        // A process that escaped would keep the tasks alive.
        outputs.iter().for_each(|output| output.abort());
    }

    /// Handles a note of a dead instance. It cannot become ready any more, and it did not survive
    /// its last kill.
    fn handle_late_note(
        &self,
        note: Option<InstanceNote>,
        start: &mut StartProgress,
        process: &dyn InstanceProcess,
    ) {
        if !matches!(note, Some(InstanceNote::Ready | InstanceNote::OomKill)) {
            self.handle_note(note, start, process);
        }
    }

    /// Explains the end. `exit` is `None` for an instance that the node ended for exceeding its
    /// time.
    fn explain_end(
        &self,
        exit: Option<ProcessExit>,
        start: StartProgress,
        oom_kills: Option<u64>,
    ) -> InstanceEnding {
        let evidence = EndEvidence {
            exit,
            last_line: self.last_line(),
            memory_limit: self.enforced_memory_limit(),
            reported: start.failure,
            oom_kills,
        };
        let report = |cause, text| EndReport::new(evidence.memory_failure().unwrap_or(cause), text);
        if start.ready {
            let text = evidence.text_after_ready();
            return InstanceEnding::Died(report(StartFailureCause::Died, text));
        }
        // A reported failure explains more than the timeout.
        let (cause, text) = match exit {
            None if evidence.reported.is_none() => (
                StartFailureCause::TooSlow,
                evidence.text_too_slow(self.start_timeout),
            ),
            _ => (StartFailureCause::Exited, evidence.text_before_ready()),
        };
        InstanceEnding::FailedStart(report(cause, text + self.port_hint()))
    }

    /// Returns the last line of the instance's own output.
    fn last_line(&self) -> Option<String> {
        let last = self
            .context
            .logs
            .last_line(&self.spec.function, self.spec.id);
        last.filter(|line| !line.starts_with(NODE_PREFIX))
    }

    /// Returns a hint for instances on a shared network, where the tenant's chosen port is not
    /// used.
    fn port_hint(&self) -> &'static str {
        let server = self
            .spec
            .environment
            .get("mode")
            .is_some_and(|mode| mode == "http");
        match self.spec.eip.is_none() && server {
            true => {
                "; without a sandbox a server must listen on the port that the variable PORT names"
            }
            false => "",
        }
    }
}

/// State of the start according to the notes.
#[derive(Debug, Default)]
struct StartProgress {
    ready: bool,
    /// Set by the watchdog's first note; notes of its predecessor in the process do not count.
    ///
    /// Earlier signals would be lost: the first process of a PID namespace gets only signals that
    /// it handles (pid_namespaces(7)). The watchdog installs its handlers before its first note.
    handles_signals: bool,
    is_closed: bool,
    failure: Option<String>,
    /// Kills for lack of memory that were reported while it went on.
    reported_oom_kills: u64,
}

impl StartProgress {
    /// Returns whether the time to become ready, or to end after a failure, is running.
    fn is_overdue(&self) -> bool {
        !self.ready || self.failure.is_some()
    }
}
