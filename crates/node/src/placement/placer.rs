//! The rim of the placement: measures, asks each chain's [`Seat`], and moves its instances.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nearpath_kernel::cores::{self, Ticks};
use nearpath_types::InstanceId;
use nearpath_types::policy::Placement;

use super::{Core, Seat};
use crate::machine::Process;

/// Between two looks. A chain that has outgrown its processor waits so long for more.
pub(crate) const PERIOD: Duration = Duration::from_secs(2);

/// A chain that runs.
pub(crate) struct Crew {
    pub(crate) wish: Placement,
    /// Functions of which something runs.
    pub(crate) functions: usize,
    pub(crate) members: Vec<(InstanceId, Arc<dyn Process>)>,
}

impl Crew {
    /// A function alone has nobody to share a processor with.
    fn wish(&self) -> Placement {
        match self.wish {
            Placement::Auto if self.functions < 2 => Placement::Spread,
            wish => wish,
        }
    }
}

type Crews = BTreeMap<String, Crew>;

/// Places the chains of a node. Clones are the same.
#[derive(Clone)]
pub(crate) struct Placer(Arc<Mutex<Plan>>);

impl Placer {
    /// Nothing is placed yet.
    pub(crate) fn new() -> Self {
        let own = cores::own().unwrap_or_default();
        Self(Arc::new(Mutex::new(Plan { own, ..Plan::default() })))
    }

    /// Measures and decides anew. Returns at once: it reads files.
    pub(crate) fn look(&self, crews: Crews) {
        self.run(move |plan| plan.look(&crews));
    }

    /// Puts what has come to the places that are decided.
    pub(crate) fn seat(&self, crews: Crews) {
        self.run(move |plan| plan.seat(&crews));
    }

    fn run(&self, what: impl FnOnce(&mut Plan) + Send + 'static) {
        let plan = Arc::clone(&self.0);
        tokio::task::spawn_blocking(move || what(&mut plan.lock().unwrap_or_else(PoisonError::into_inner)));
    }
}

#[derive(Default)]
struct Plan {
    /// The processors that the node may use.
    own: Vec<usize>,
    seats: BTreeMap<String, Seat>,
    members: HashMap<InstanceId, Member>,
    /// What the processors had done at the last look, and since then.
    ticks: Option<(Instant, Vec<Ticks>)>,
    busy: Vec<(usize, f64)>,
}

/// An instance as it was at the last look.
#[derive(Default)]
struct Member {
    cpu: Option<Duration>,
    at: Option<usize>,
}

impl Plan {
    fn look(&mut self, crews: &Crews) {
        let Ok(ticks) = cores::ticks() else { return };
        let now = Instant::now();
        let before = self.ticks.replace((now, ticks));
        let since = before.map(|(at, old)| (now.duration_since(at), old));
        self.forget(crews);
        let used: Vec<_> = crews.values().map(|crew| self.used(crew)).collect();
        let Some((elapsed, old)) = since else { return self.seat(crews) };
        self.busy = self.busy_since(&old);
        for ((domain, crew), used) in crews.iter().zip(used) {
            let share = used.as_secs_f64() / elapsed.as_secs_f64().max(1e-3);
            let cores = self.cores(domain);
            let seat = self.seats.entry(domain.clone()).or_default();
            let before = seat.core();
            let after = seat.look(crew.wish(), share, &cores);
            if before != after {
                tracing::info!(domain, from = before, to = after, used = share, "the chain's processor");
            }
        }
        self.move_all(crews);
    }

    /// Only what needs no measurement.
    fn seat(&mut self, crews: &Crews) {
        for (domain, crew) in crews {
            let cores = self.cores(domain);
            let seat = self.seats.entry(domain.clone()).or_default();
            let before = seat.core();
            let after = seat.obey(crew.wish(), &cores);
            if before != after {
                tracing::info!(domain, from = before, to = after, "the chain's processor, as its functions wish");
            }
        }
        self.move_all(crews);
    }

    fn forget(&mut self, crews: &Crews) {
        self.seats.retain(|domain, _| crews.contains_key(domain));
        let lives = |id: &InstanceId| crews.values().any(|crew| crew.members.iter().any(|(member, _)| member == id));
        self.members.retain(|id, _| lives(id));
    }

    /// CPU time of a chain since the last look; what has just come counts from the next one on.
    fn used(&mut self, crew: &Crew) -> Duration {
        let mut sum = Duration::ZERO;
        for (id, process) in &crew.members {
            let member = self.members.entry(*id).or_default();
            let now = process.cpu();
            sum += now.zip(member.cpu).map_or(Duration::ZERO, |(now, last)| now.saturating_sub(last));
            member.cpu = now;
        }
        sum
    }

    fn busy_since(&self, old: &[Ticks]) -> Vec<(usize, f64)> {
        let now = self.ticks.iter().flat_map(|(_, ticks)| ticks);
        let both = now.filter_map(|now| Some((now, old.iter().find(|old| old.number == now.number)?)));
        let share = |(now, old): (&Ticks, &Ticks)| {
            let (busy, idle) = (now.busy.saturating_sub(old.busy), now.idle.saturating_sub(old.idle));
            (now.number, busy as f64 / (busy + idle).max(1) as f64)
        };
        both.map(share).collect()
    }

    /// The processors as a chain sees them.
    fn cores(&self, domain: &str) -> Vec<Core> {
        let busy = |number| self.busy.iter().find(|(other, _)| *other == number).map_or(0.0, |(_, busy)| *busy);
        let others = || self.seats.iter().filter(|(other, _)| *other != domain).filter_map(|(_, seat)| seat.core());
        let seats = |number| others().filter(|other| *other == number).count() as u32;
        self.own.iter().map(|&number| Core { number, busy: busy(number), seats: seats(number) }).collect()
    }

    /// An instance that has ended need not be moved.
    fn move_all(&mut self, crews: &Crews) {
        for (domain, crew) in crews {
            let to = self.seats.get(domain).and_then(Seat::core);
            for (id, process) in &crew.members {
                let member = self.members.entry(*id).or_default();
                if member.at != to {
                    let _ = process.place(&self.own, member.at, to);
                    member.at = to;
                }
            }
        }
    }
}
