//! The walk of one instance: copy the folder, launch, listen to its notes, serve, stop, clear up.
//!
//! One task an instance. It decides nothing about other instances; it reports [`Event`]s to the agent, and the last one
//! is always [`Event::Gone`], sent when nothing of the instance is left on the machine.

use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use nearpath_types::{DesiredFunction, InstanceAddr, InstanceId, StartPhase};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::ending::{Ending, Evidence};
use super::notes::{Note, Notes};
use super::variables;
use crate::artifact::{Artifacts, Key};
use crate::identities::{Caller, Identities, Surroundings, Telling};
use crate::logs::Logs;
use crate::machine::{Blueprint, Exit, Launched, Machine, Process};

/// How long a dead instance's pipes may hold the report back: a process that escaped may still hold them open.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How long an instance that reported its failure may take to end.
const FAILED_GRACE: Duration = Duration::from_secs(3);

/// How long an instance waits for the gateway to let go of it.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);

/// Begins what the node itself writes into a function's log.
const OWN_WORDS: &str = "nearpath: ";

/// What the agent hears of an instance.
pub enum Event {
    /// It runs.
    Launched {
        /// Which one.
        id: InstanceId,
        /// Process id of its watchdog.
        pid: u32,
        /// For measuring it.
        process: Arc<dyn Process>,
    },
    /// It was told who it is, and can be called over QUIC by this name.
    Named(InstanceId, Arc<str>),
    /// A phase of its start ended.
    Phase(InstanceId, StartPhase),
    /// It may be called.
    Ready(InstanceId),
    /// Its processes have ended: nobody answers there. What is left of it is cleared up, which may take a while.
    Exited(InstanceId),
    /// Nothing is left of it.
    Gone(InstanceId, Ending),
}

/// The agent's word to stop.
pub struct StopOrder {
    /// Ends when nobody sends it new requests any more.
    pub withdrawn: BoxFuture<'static, ()>,
    /// How long it may take after that.
    pub limit: Duration,
}

/// What all instances of a node share.
#[derive(Clone)]
pub struct Tools {
    /// The machine.
    pub machine: Arc<dyn Machine>,
    /// The copies of folders.
    pub artifacts: Arc<Artifacts>,
    /// Who says who they are.
    pub identities: Identities,
    /// What is around those who are told.
    pub(crate) around: Surroundings,
    /// Where their output goes.
    pub logs: Logs,
    /// Who hears of them.
    pub events: mpsc::UnboundedSender<Event>,
}

/// Everything that an instance's task needs.
pub struct Life {
    /// What to build; its folder is filled in here.
    blueprint: Blueprint,
    /// What it runs.
    artifact: Key,
    /// The image to copy from on first use.
    image: String,
    /// How long it may take to get ready.
    start_limit: Duration,
    /// The tenant's memory limit, for texts.
    memory_limit: Option<String>,
    /// It is told who it is.
    told: bool,
    tools: Tools,
}

/// The two outputs being read.
type Pumps = [tokio::task::JoinHandle<()>; 2];

/// How the watching of a process came to its end.
enum Watched {
    Exited(Exit),
    TooSlow,
    /// Without an order the node itself has ended.
    Ordered(Option<StopOrder>),
}

impl Life {
    /// That of one instance of `desired`, before its start.
    pub fn new(blueprint: Blueprint, desired: &DesiredFunction, tools: Tools) -> Self {
        let spec = &desired.spec;
        Self {
            artifact: (spec.id(), desired.revision),
            image: spec.image.clone(),
            start_limit: variables::start_limit(spec),
            memory_limit: spec.limits.as_ref().and_then(|limits| limits.memory.clone()),
            told: blueprint.environment.contains_key(variables::IDENTITY.0),
            blueprint,
            tools,
        }
    }

    /// Lives it. A sender that is dropped without an order counts as an order to end at once.
    pub async fn live(mut self, stop: oneshot::Receiver<StopOrder>) {
        let ending = match self.launch().await {
            Ok(launched) => self.run(launched, stop).await,
            Err(ending) => ending,
        };
        self.tell(Event::Gone(self.blueprint.id, ending));
    }

    /// The agent outlives its instances; when it is gone, so is the reason to tell.
    fn tell(&self, event: Event) {
        let _ = self.tools.events.send(event);
    }

    fn phase(&self, name: &str, since: Instant) {
        let phase = StartPhase { name: name.to_owned(), took: since.elapsed() };
        self.tell(Event::Phase(self.blueprint.id, phase));
    }

    async fn launch(&mut self) -> Result<Launched, Ending> {
        let begun = Instant::now();
        let folder = self.tools.artifacts.get(&self.artifact, &self.image).await;
        self.blueprint.folder = folder.map_err(|error| Ending::failed_start(error.to_string(), error.is_lasting()))?;
        self.phase("artifact", begun);
        let (machine, blueprint, begun) = (self.tools.machine.clone(), self.blueprint.clone(), Instant::now());
        let launched = tokio::task::spawn_blocking(move || machine.launch(&blueprint)).await;
        let launched = launched.expect("launching does not panic");
        self.phase("spawn", begun);
        launched.map_err(|error| {
            Ending::FailedStart(format!("the node could not start the instance: {error}; see `nearpath doctor`"))
        })
    }

    async fn run(&self, launched: Launched, stop: oneshot::Receiver<StopOrder>) -> Ending {
        let Launched { pid, stdout, stderr, notes, identity, remarks, process } = launched;
        let _telling = self.told.then(|| self.identify(identity)); // otherwise the pipe ends here
        self.tell(Event::Launched { id: self.blueprint.id, pid, process: process.clone() });
        self.admit_unkept_limits();
        remarks.iter().for_each(|remark| self.remark(remark));
        let pumps: Pumps = [stdout, stderr].map(|output| {
            tokio::spawn(self.tools.logs.clone().collect(self.blueprint.function.clone(), self.blueprint.id, output))
        });
        let ending = match Notes::new(notes) {
            Ok(notes) => self.watch(&*process, notes, stop, pumps).await,
            Err(error) => {
                process.kill();
                process.exited().await;
                Ending::FailedStart(format!("the node cannot hear the instance: {error}"))
            }
        };
        let _ = tokio::task::spawn_blocking(move || process.release()).await; // a panic there is printed
        ending
    }

    /// Tells the instance who it is, beside its start, and talks with it for as long as it is there.
    fn identify(&self, socket: OwnedFd) -> Telling {
        let (function, id) = (self.blueprint.function.clone(), self.blueprint.id);
        let Tools { events, logs, .. } = self.tools.clone();
        let known = move |named: Result<Arc<str>, String>| match named {
            Ok(name) => drop(events.send(Event::Named(id, name))),
            Err(why) => {
                tracing::warn!(%function, instance = %id, "it has no certificate, so it is not called: {why}");
                logs.push(&function, id, format!("{OWN_WORDS}it has no certificate, so it is not called: {why}"));
            }
        };
        let picked_up = self.blueprint.eip.filter(|_| self.blueprint.pickup.is_some());
        let addr = picked_up.map(|eip| InstanceAddr((eip.0, variables::PORT).into()));
        let caller = Caller { function: self.blueprint.function.clone(), instance: id, addr };
        Telling::begin(self.tools.identities.clone().tell(caller, socket, self.tools.around.clone(), known))
    }

    fn unkept_limits(&self) -> Vec<&'static str> {
        self.tools.machine.unkept(&self.blueprint.limits)
    }

    /// Nobody should believe in a limit that is not there.
    fn admit_unkept_limits(&self) {
        for limit in self.unkept_limits() {
            self.remark(&format!("{limit} is not kept on this node; `nearpath doctor` says why"));
        }
    }

    /// Writes something of the node's own into the function's log.
    fn remark(&self, text: &str) {
        self.tools.logs.push(&self.blueprint.function, self.blueprint.id, format!("{OWN_WORDS}{text}"));
    }

    async fn watch(
        &self,
        process: &dyn Process,
        mut notes: Notes,
        mut stop: oneshot::Receiver<StopOrder>,
        pumps: Pumps,
    ) -> Ending {
        let (mut start, mut exited) = (Start::default(), process.exited());
        let watched = self.listen(&mut notes, &mut start, &mut exited, &mut stop).await;
        let exit = match watched {
            Watched::Exited(exit) => Some(exit),
            Watched::TooSlow => {
                process.kill();
                exited.await;
                None
            }
            Watched::Ordered(order) => {
                self.stop(process, exited, order.filter(|_| start.heard)).await;
                self.tell(Event::Exited(self.blueprint.id));
                self.last_words(&mut notes, &mut start, pumps).await;
                return Ending::Stopped;
            }
        };
        self.tell(Event::Exited(self.blueprint.id));
        self.last_words(&mut notes, &mut start, pumps).await;
        self.judge(exit, start)
    }

    /// Hears notes until something ends the instance.
    async fn listen(
        &self,
        notes: &mut Notes,
        start: &mut Start,
        exited: &mut BoxFuture<'_, Exit>,
        stop: &mut oneshot::Receiver<StopOrder>,
    ) -> Watched {
        let mut deadline = pin!(sleep(self.start_limit));
        loop {
            tokio::select! {
                biased;
                note = notes.next(), if !start.silent => {
                    if self.hear(note, start) {
                        deadline.as_mut().reset(tokio::time::Instant::now() + FAILED_GRACE);
                    }
                }
                exit = &mut *exited => return Watched::Exited(exit),
                order = &mut *stop => return Watched::Ordered(order.ok()),
                () = &mut deadline, if start.is_overdue() => return Watched::TooSlow,
            }
        }
    }

    /// Takes one note; says whether it began the time in which a failed instance has to end.
    fn hear(&self, note: Option<Note>, start: &mut Start) -> bool {
        start.heard |= note.is_some();
        match note {
            Some(Note::Phase(phase)) if !start.ready => self.tell(Event::Phase(self.blueprint.id, phase)),
            Some(Note::Ready) if !start.ready && start.reported.is_none() => {
                start.ready = true;
                self.tell(Event::Ready(self.blueprint.id));
            }
            Some(Note::Failed(text)) => {
                start.reported.get_or_insert(text);
                return true;
            }
            Some(Note::Phase(_) | Note::Ready) => {}
            None => start.silent = true,
        }
        false
    }

    /// Withdraw, ask, insist. Without an order: insist.
    async fn stop(&self, process: &dyn Process, mut exited: BoxFuture<'_, Exit>, order: Option<StopOrder>) {
        if let Some(StopOrder { withdrawn, limit }) = order {
            tokio::select! {
                _ = &mut exited => return,
                _ = timeout(SETTLE_LIMIT, withdrawn) => {}
            }
            process.terminate();
            if timeout(limit, &mut exited).await.is_ok() {
                return;
            }
            let text = format!("{OWN_WORDS}the instance did not stop within {limit:?} and was killed");
            self.tools.logs.push(&self.blueprint.function, self.blueprint.id, text);
        }
        process.kill();
        exited.await;
    }

    /// Reads what the dead instance had still written.
    async fn last_words(&self, notes: &mut Notes, start: &mut Start, mut pumps: Pumps) {
        let rest = async {
            while !start.silent {
                self.hear_late(notes.next().await, start);
            }
            for pump in &mut pumps {
                let _ = pump.await; // a panic there is printed
            }
        };
        let _ = timeout(LAST_WORDS, rest).await;
        pumps.iter().for_each(|pump| pump.abort());
    }

    /// A dead instance does not get ready any more.
    fn hear_late(&self, note: Option<Note>, start: &mut Start) {
        if note != Some(Note::Ready) {
            self.hear(note, start);
        }
    }

    /// `exit` is `None` for an instance that the node ended because its time was up.
    fn judge(&self, exit: Option<Exit>, start: Start) -> Ending {
        let evidence = Evidence {
            exit,
            last_line: self.last_line(),
            memory_limit: self.memory_limit.clone().filter(|_| !self.unkept_limits().contains(&"limits.memory")),
            reported: start.reported,
        };
        match (exit, start.ready) {
            (_, true) => Ending::Died(evidence.after_ready()),
            (None, false) if evidence.reported.is_none() => {
                Ending::FailedStart(evidence.too_slow(self.start_limit) + self.port_hint())
            }
            (_, false) => Ending::FailedStart(evidence.before_ready() + self.port_hint()),
        }
    }

    /// What the instance wrote last, unless it wrote nothing.
    fn last_line(&self) -> Option<String> {
        let last = self.tools.logs.last_line(&self.blueprint.function, self.blueprint.id);
        last.filter(|line| !line.starts_with(OWN_WORDS))
    }

    /// Where all share the machine's ports, the one that a tenant chose is not the one that is asked for.
    fn port_hint(&self) -> &'static str {
        let server = self.blueprint.environment.get("mode").is_some_and(|mode| mode == "http");
        match self.blueprint.eip.is_none() && server {
            true => "; without a sandbox a server must listen on the port that the variable PORT names",
            false => "",
        }
    }
}

/// What the notes told so far.
#[derive(Debug, Default)]
struct Start {
    ready: bool,
    /// It has said something. Before, it is deaf: a process that is the first of its namespace gets only signals that it asks for,
    /// and the watchdog asks before its first note. Nothing of the tenant's runs then.
    heard: bool,
    silent: bool,
    reported: Option<String>,
}

impl Start {
    /// Whether its time to get ready, or to end after a failure, runs.
    fn is_overdue(&self) -> bool {
        !self.ready || self.reported.is_some()
    }
}
