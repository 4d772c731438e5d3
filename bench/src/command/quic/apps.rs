//! The published system's applications: functions in Python behind the real watchdog, called over every transport.
//!
//! What a function does itself takes the same time whoever calls it, and more than the network by far. So each case has a variant without
//! a network, on loopback over connections that stay; what a transport takes beyond that is told below the table.

mod ground;
mod town;

use std::time::Duration;

use self::town::{Seen, Town};
use super::{Args, Place, here, near};
use crate::apps::need::{Missing, Python};
use crate::apps::{App, Calls, Case, Kind, retail};
use crate::compare::Comparison;
use crate::remote::call::Call;
use crate::remote::caller::{Callee, Caller};
use crate::remote::site::Identity;
use crate::remote::{Error, Way, drive};
use crate::tally::Failure;

/// The published system's callees show a certificate and its callers none, as in the second one.
const WAYS: [Way; 6] = [
    Way::Tcp,
    Way::Tls12Server,
    Way::Tls12,
    Way::Tls13,
    Way::QuicEarly,
    Way::QuicReady,
];
/// Chains as the published system has them, where functions call each other through the gateway.
const DETOURS: [Way; 2] = [Way::Tls12Server, Way::QuicEarly];
/// What the names of those end with.
pub(super) const DETOUR: &str = ", gateway between";
/// The variant without a network.
const OWN: &str = "loopback, kept";

/// Which applications.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Wanted {
    None,
    All,
    Certinfo,
    Resizer,
    Retail,
}

/// A way to call a function, and for it to call others.
struct Variant {
    name: String,
    way: Way,
    detour: bool,
}

/// One that is there, with who calls it.
struct Stage<'a> {
    args: &'a Args,
    place: Place,
    kind: Kind,
    app: &'a App,
    town: &'a Town,
    caller: Caller,
}

/// Every application that is wanted, at every distance. One for which something is missing is a line below the table.
pub(super) fn measure(args: &Args, comparison: &mut Comparison) -> Result<(), Error> {
    for &place in &args.app_delays {
        for kind in Kind::ALL.into_iter().filter(|kind| wants(args, *kind)) {
            match one(args, place, kind, comparison) {
                Err(error) if error.is::<Missing>() => {
                    comparison.remark(format!("left out: app {}, {place}: {error}", kind.name()));
                }
                done => done?,
            }
        }
    }
    Ok(())
}

fn wants(args: &Args, kind: Kind) -> bool {
    let chosen = |wanted: &Wanted| match wanted {
        Wanted::None => false,
        Wanted::All => true,
        Wanted::Certinfo => kind == Kind::Certinfo,
        Wanted::Resizer => kind == Kind::Resizer,
        Wanted::Retail => kind == Kind::Retail,
    };
    args.apps.iter().any(chosen) && args.may_want(&format!("app {}", kind.name()))
}

fn one(args: &Args, place: Place, kind: Kind, comparison: &mut Comparison) -> Result<(), Error> {
    let python = Python::with_packages(kind.name())?;
    let ground = ground::Ground::new(place, args.awake)?;
    let app = kind.start(python, &ground.second, &ground.machines.1)?;
    let town = Town::build(&ground, &app)?;
    eprintln!("started: app {}, {place}", kind.name());
    ground.caller.enter(|| {
        here(async {
            let stage = Stage {
                args,
                place,
                kind,
                app: &app,
                town: &town,
                caller: Caller::new(town.gateway.clone())?,
            };
            for case in &app.cases {
                stage.case(case, comparison).await?;
            }
            Ok(())
        })
    })
}

impl Stage<'_> {
    async fn case(&self, case: &Case, comparison: &mut Comparison) -> Result<(), Error> {
        let name = name(self.kind, case, self.place);
        if !self.args.wants(&name) {
            return Ok(());
        }
        let variants = self.variants(case);
        let names: Vec<&str> = variants
            .iter()
            .map(|variant| variant.name.as_str())
            .chain([OWN])
            .collect();
        let measure = async |index: usize| {
            let took = match variants.get(index) {
                Some(variant) => self.away(case, variant).await?,
                None => at_home(
                    self.town,
                    self.town.home(case.function)?,
                    &self.calls(case).await?,
                )?,
            };
            Ok::<_, Error>(near::told(&name, names[index], &took).measured())
        };
        comparison.loads(&name, &names, measure).await?;
        eprintln!("measured: {name}");
        network(comparison, &name, &names);
        Ok(())
    }

    /// Those that are wanted.
    fn variants(&self, case: &Case) -> Vec<Variant> {
        let direct = WAYS.into_iter().map(|way| Variant {
            name: way.name().to_owned(),
            way,
            detour: false,
        });
        let detour = |way: Way| Variant {
            name: format!("{}{DETOUR}", way.name()),
            way,
            detour: true,
        };
        let calls_others = self
            .app
            .functions
            .iter()
            .any(|function| function.name == case.function && function.calls);
        let detours = DETOURS.into_iter().filter(|_| calls_others).map(detour);
        direct
            .chain(detours)
            .filter(|variant| self.args.has(&variant.name))
            .collect()
    }

    async fn away(&self, case: &Case, variant: &Variant) -> Result<drive::Took, Error> {
        let mut calls = self.calls(case).await?;
        if variant.detour {
            calls = calls.into_iter().map(Call::through_gateway).collect();
        }
        let seen = self.town.away(case.function)?;
        let of = (variant.way, &seen.callee);
        Ok(drive::each(&self.caller, of, &calls, || {
            seen.spent(variant.way.needs_front())
        })
        .await)
    }

    /// What a measurement calls, and one before that is not counted. All of them begin with the same data.
    async fn calls(&self, case: &Case) -> Result<Vec<Call>, Error> {
        self.app.reset()?;
        let count = usize::try_from(self.args.least)? + 1;
        match &case.calls {
            Calls::Same(call) => Ok(vec![call.clone(); count]),
            Calls::Acquire => {
                let mut calls = Vec::with_capacity(count);
                while calls.len() < count {
                    calls.push(
                        self.assigned()
                            .await
                            .map_err(|failure| format!("no assignment: {failure}"))?,
                    );
                }
                Ok(calls)
            }
        }
    }

    /// A call that ends an assignment, which is made for it.
    async fn assigned(&self) -> Result<Call, Error> {
        let assign = retail::assign();
        let assigned = self.ask(retail::ASSIGNERS[0], &assign).await?;
        let [record, acquire] = retail::acquire(&assigned)?;
        self.ask(retail::ASSIGNERS[1], &record).await?;
        Ok(acquire)
    }

    async fn ask(&self, function: &str, call: &Call) -> Result<bytes::Bytes, Error> {
        let callee: &Callee = &self.town.away(function)?.callee;
        let asked = async {
            let mut connection = self.caller.open(Way::Tcp, callee).await?;
            let answer = connection.whole(call.request(Way::Tcp)).await?;
            call.check(&answer).map(|()| answer.into_body())
        };
        asked
            .await
            .map_err(|failure: Failure| format!("{function}: {failure}").into())
    }
}

/// As tables have it.
fn name(kind: Kind, case: &Case, place: Place) -> String {
    let words = ["app", kind.name(), case.name]
        .into_iter()
        .filter(|word| !word.is_empty());
    format!("{}, {place}", words.collect::<Vec<_>>().join(" "))
}

/// On the callees' own machine, where nothing lies between.
fn at_home(town: &Town, seen: &Seen, calls: &[Call]) -> Result<drive::Took, Error> {
    let identity: Identity = town.gateway.clone();
    town.second.enter(|| {
        here(async {
            let caller = Caller::new(identity)?;
            Ok(
                drive::on_one(&caller, (Way::Tcp, &seen.callee), calls, || -> Duration {
                    seen.spent(false)
                })
                .await,
            )
        })
    })
}

/// Says what every variant takes beyond the functions' own time.
fn network(comparison: &mut Comparison, case: &str, variants: &[&str]) {
    let p50 = |variant| comparison.value(case, variant, |row| row.p50_us);
    let Some(own) = p50(OWN) else { return };
    let over = variants.iter().filter(|name| **name != OWN);
    let parts = over.filter_map(|name| Some(format!("{name} {:.1}", (p50(name)? - own) / 1e3)));
    let parts: Vec<_> = parts.collect();
    comparison.remark(format!(
        "{case}: the functions' own time {:.1} ms; the network's part in ms: {}",
        own / 1e3,
        parts.join("; ")
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_the_application_in_their_name() {
        let case = |name| Case {
            name,
            function: "f",
            calls: Calls::Acquire,
        };
        assert_eq!(
            name(Kind::Certinfo, &case(""), Place::Loopback),
            "app certinfo, loopback"
        );
        let place = Place::Link(Duration::from_micros(500));
        assert_eq!(
            name(Kind::Retail, &case("f10 GET"), place),
            "app retail f10 GET, 0.5 ms"
        );
    }
}
