//! The published system's applications: functions in Python behind the real watchdog, called over
//! every transport.
//!
//! The work of a function takes the same time for every caller, and far more than the network. So
//! each case has a variant without a network, on loopback over keep-alive connections. The table's
//! remarks state the remaining time.

mod fixture;
mod network;

use std::time::Duration;

use self::fixture::{AppFixture, ReachableFunction};
use super::{NetworkPlace, QuicArgs, near, run_local};
use crate::apps::requirements::{MissingRequirement, PythonEnv};
use crate::apps::{AppCase, AppKind, CaseCalls, ExampleApp, retail};
use crate::compare::BenchComparison;
use crate::remote::call::RemoteCall;
use crate::remote::caller::{CalleeAddress, RemoteCaller};
use crate::remote::identities::CallIdentity;
use crate::remote::{BenchError, RemoteTransport, drive};
use crate::tally::RequestFailure;

/// Transports. In the published system callees have a certificate and callers none, as in the
/// second one.
const APP_TRANSPORTS: [RemoteTransport; 6] = [
    RemoteTransport::Tcp,
    RemoteTransport::Tls12Server,
    RemoteTransport::Tls12,
    RemoteTransport::Tls13,
    RemoteTransport::QuicEarly,
    RemoteTransport::QuicReady,
];
/// Transports of chains whose functions call each other through the gateway, as in the published
/// system.
const GATEWAY_TRANSPORTS: [RemoteTransport; 2] =
    [RemoteTransport::Tls12Server, RemoteTransport::QuicEarly];
/// Suffix of the variants through the gateway.
pub(super) const VIA_GATEWAY_SUFFIX: &str = ", via gateway";
/// Variant without a network.
const LOCAL_VARIANT: &str = "loopback, keep-alive";

/// Selection of applications.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WantedApps {
    None,
    All,
    Certinfo,
    Resizer,
    Retail,
}

/// A transport for calls to and between functions.
struct AppVariant {
    name: String,
    transport: RemoteTransport,
    via_gateway: bool,
}

/// Running application with its callers.
struct AppSetup<'a> {
    args: &'a QuicArgs,
    place: NetworkPlace,
    kind: AppKind,
    app: &'a ExampleApp,
    fixture: &'a AppFixture,
    caller: RemoteCaller,
}

/// Measures every wanted application at every distance. A missing dependency is a remark below the
/// table.
pub(super) fn measure(args: &QuicArgs, comparison: &mut BenchComparison) -> Result<(), BenchError> {
    for &place in &args.app_delays {
        for kind in AppKind::ALL
            .into_iter()
            .filter(|kind| wants_app(args, *kind))
        {
            match measure_app(args, place, kind, comparison) {
                // Only a missing requirement is skipped; other errors end the run.
                Err(error) if error.is::<MissingRequirement>() => {
                    comparison
                        .add_remark(format!("omitted: app {}, {place}: {error}", kind.name()));
                }
                done => done?,
            }
        }
    }
    Ok(())
}

fn wants_app(args: &QuicArgs, kind: AppKind) -> bool {
    let chosen = |wanted: &WantedApps| match wanted {
        WantedApps::None => false,
        WantedApps::All => true,
        WantedApps::Certinfo => kind == AppKind::Certinfo,
        WantedApps::Resizer => kind == AppKind::Resizer,
        WantedApps::Retail => kind == AppKind::Retail,
    };
    args.apps.iter().any(chosen) && args.may_want(&format!("app {}", kind.name()))
}

fn measure_app(
    args: &QuicArgs,
    place: NetworkPlace,
    kind: AppKind,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let python = PythonEnv::with_packages(kind.name())?;
    let network = network::AppNetwork::new(place, args.awake)?;
    let app = kind.start_app(python, &network.second, &network.machines.1)?;
    let fixture = AppFixture::build(&network, &app)?;
    eprintln!("started: app {}, {place}", kind.name());
    network.caller.enter(|| {
        run_local(async {
            let setup = AppSetup {
                args,
                place,
                kind,
                app: &app,
                fixture: &fixture,
                caller: RemoteCaller::new(fixture.gateway.clone())?,
            };
            for case in &app.cases {
                setup.measure_case(case, comparison).await?;
            }
            Ok(())
        })
    })
}

impl AppSetup<'_> {
    async fn measure_case(
        &self,
        case: &AppCase,
        comparison: &mut BenchComparison,
    ) -> Result<(), BenchError> {
        let name = case_name(self.kind, case, self.place);
        if !self.args.wants_case(&name) {
            return Ok(());
        }
        let variants = self.wanted_variants(case);
        let names: Vec<&str> = variants
            .iter()
            .map(|variant| variant.name.as_str())
            .chain([LOCAL_VARIANT])
            .collect();
        let measure = async |index: usize| {
            let took = match variants.get(index) {
                Some(variant) => self.measure_remote(case, variant).await?,
                None => measure_local(
                    self.fixture,
                    self.fixture.local_function(case.function)?,
                    &self.case_calls(case).await?,
                )?,
            };
            Ok::<_, BenchError>(near::print_failures(&name, names[index], &took).to_sample())
        };
        comparison.measure_loads(&name, &names, measure).await?;
        eprintln!("measured: {name}");
        add_network_time(comparison, &name, &names);
        Ok(())
    }

    /// Returns the wanted variants.
    fn wanted_variants(&self, case: &AppCase) -> Vec<AppVariant> {
        let direct = APP_TRANSPORTS.into_iter().map(|transport| AppVariant {
            name: transport.name().to_owned(),
            transport,
            via_gateway: false,
        });
        let via_gateway = |transport: RemoteTransport| AppVariant {
            name: format!("{}{VIA_GATEWAY_SUFFIX}", transport.name()),
            transport,
            via_gateway: true,
        };
        let calls_others = self
            .app
            .functions
            .iter()
            .any(|function| function.name == case.function && function.calls);
        let detours = GATEWAY_TRANSPORTS
            .into_iter()
            .filter(|_| calls_others)
            .map(via_gateway);
        direct
            .chain(detours)
            .filter(|variant| self.args.has_variant(&variant.name))
            .collect()
    }

    async fn measure_remote(
        &self,
        case: &AppCase,
        variant: &AppVariant,
    ) -> Result<drive::CallTimes, BenchError> {
        let mut calls = self.case_calls(case).await?;
        if variant.via_gateway {
            calls = calls.into_iter().map(RemoteCall::through_gateway).collect();
        }
        let seen = self.fixture.remote_function(case.function)?;
        let of = (variant.transport, &seen.callee);
        Ok(drive::call_each(&self.caller, of, &calls, || {
            seen.cpu_spent(variant.transport.needs_front())
        })
        .await)
    }

    /// Returns the calls of a measurement, with an uncounted call before them. All measurements
    /// start with the same data.
    async fn case_calls(&self, case: &AppCase) -> Result<Vec<RemoteCall>, BenchError> {
        // Before each measurement, since calls change the database and its size changes their time.
        self.app.restore_data()?;
        // One more, which is not counted: it fills caches of the functions.
        let count = usize::try_from(self.args.least)? + 1;
        match &case.calls {
            CaseCalls::Same(call) => Ok(vec![call.clone(); count]),
            CaseCalls::Acquire => {
                let mut calls = Vec::with_capacity(count);
                while calls.len() < count {
                    calls.push(
                        self.assigned_call()
                            .await
                            .map_err(|failure| format!("no assignment: {failure}"))?,
                    );
                }
                Ok(calls)
            }
        }
    }

    /// Returns a call that ends an assignment, which is made for it.
    async fn assigned_call(&self) -> Result<RemoteCall, BenchError> {
        let assign = retail::assign_call();
        let assigned = self.call_function(retail::ASSIGNERS[0], &assign).await?;
        let [record, acquire] = retail::acquire_calls(&assigned)?;
        self.call_function(retail::ASSIGNERS[1], &record).await?;
        Ok(acquire)
    }

    async fn call_function(
        &self,
        function: &str,
        call: &RemoteCall,
    ) -> Result<bytes::Bytes, BenchError> {
        let callee: &CalleeAddress = &self.fixture.remote_function(function)?.callee;
        let outcome = async {
            let mut connection = self
                .caller
                .open_connection(RemoteTransport::Tcp, callee)
                .await?;
            let response = connection
                .request_whole(call.build_request(RemoteTransport::Tcp))
                .await?;
            call.check_response(&response)
                .map(|()| response.into_body())
        };
        outcome
            .await
            .map_err(|failure: RequestFailure| format!("{function}: {failure}").into())
    }
}

/// Returns the name in tables.
fn case_name(kind: AppKind, case: &AppCase, place: NetworkPlace) -> String {
    let words = ["app", kind.name(), case.name]
        .into_iter()
        .filter(|word| !word.is_empty());
    format!("{}, {place}", words.collect::<Vec<_>>().join(" "))
}

/// Measures on the callees' machine, without a network.
fn measure_local(
    fixture: &AppFixture,
    seen: &ReachableFunction,
    calls: &[RemoteCall],
) -> Result<drive::CallTimes, BenchError> {
    let identity: CallIdentity = fixture.gateway.clone();
    fixture.second.enter(|| {
        run_local(async {
            let caller = RemoteCaller::new(identity)?;
            Ok(drive::call_on_one(
                &caller,
                (RemoteTransport::Tcp, &seen.callee),
                calls,
                || -> Duration { seen.cpu_spent(false) },
            )
            .await)
        })
    })
}

/// Adds a remark with the time of every variant beyond the functions' own time.
fn add_network_time(comparison: &mut BenchComparison, case: &str, variants: &[&str]) {
    let p50 = |variant| comparison.row_value(case, variant, |row| row.p50_us);
    let Some(own) = p50(LOCAL_VARIANT) else {
        return;
    };
    let over = variants.iter().filter(|name| **name != LOCAL_VARIANT);
    let parts = over.filter_map(|name| Some(format!("{name} {:.1}", (p50(name)? - own) / 1e3)));
    let parts: Vec<_> = parts.collect();
    comparison.add_remark(format!(
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
        let case = |name| AppCase {
            name,
            function: "f",
            calls: CaseCalls::Acquire,
        };
        assert_eq!(
            case_name(AppKind::Certinfo, &case(""), NetworkPlace::Loopback),
            "app certinfo, loopback"
        );
        let place = NetworkPlace::Link(Duration::from_micros(500));
        assert_eq!(
            case_name(AppKind::Retail, &case("f10 GET"), place),
            "app retail f10 GET, 0.5 ms"
        );
    }
}
