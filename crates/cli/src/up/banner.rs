//! The text that `nearpath up` and `nearpath node` print once they serve.

use nearpath_server::{AuthMode, CgroupController, ForwardMode, IsolationLevel, ServerSettings};

/// Prints addresses, folders and the isolation on standard error.
pub(super) fn print(
    settings: &ServerSettings,
    isolation: IsolationLevel,
    missing_controllers: &[CgroupController],
) {
    // On standard error, because `--access-log -` owns standard output.
    eprintln!("nearpath {} is up", env!("CARGO_PKG_VERSION"));
    print_addresses(settings);
    eprintln!("  state    {}", settings.data_dir.display());
    match &settings.auth {
        AuthMode::Disabled => eprintln!("  password none (--insecure)"),
        AuthMode::Files(folder) => eprintln!(
            "  password in {}",
            folder.join("basic-auth-password").display()
        ),
        // The path, never the password: terminals and journals keep what is printed.
        AuthMode::Generated | AuthMode::Provided(_) => {
            eprintln!(
                "  password in {}",
                settings.data_dir.join("basic-auth-password").display()
            );
        }
    }
    eprintln!(
        "  sandbox  {}",
        sandbox_text(isolation, missing_controllers)
    );
    if settings.forward == ForwardMode::Tc {
        eprintln!("  packets  forwarded by the kernel (--forward tc)");
    }
    match &settings.source {
        Some(source) => eprintln!(
            "  source   {} (as node {})",
            source.folder.display(),
            source.node
        ),
        None => eprintln!(
            "try: nearpath deploy -f examples/echo/stack.yml && nearpath invoke echo -d hello"
        ),
    }
}

/// Names the isolation that instances really have here.
fn sandbox_text(isolation: IsolationLevel, missing_controllers: &[CgroupController]) -> String {
    let missing: Vec<_> = missing_controllers.iter().map(|c| c.name()).collect();
    match isolation {
        IsolationLevel::Root if missing.is_empty() => "namespaces, cgroups, seccomp".to_owned(),
        IsolationLevel::Root => format!(
            "namespaces, seccomp; no cgroups for {}: `nearpath doctor` shows which limits are not enforced",
            missing.join(", ")
        ),
        IsolationLevel::UserNamespace => {
            "user namespaces (`nearpath doctor` shows the limits without root)".to_owned()
        }
        IsolationLevel::None => {
            "none (--no-sandbox): functions run with your rights; edges between them are not enforced".to_owned()
        }
    }
}

fn print_addresses(settings: &ServerSettings) {
    eprintln!("  gateway  http://{}", settings.listen);
    if let Some(tls) = &settings.tls {
        let http3 = if tls.http3 { " (and HTTP/3)" } else { "" };
        eprintln!("           https://{}{http3}", tls.listen);
    }
    if let Some(mqtt) = &settings.devices.mqtt {
        eprintln!("           mqtt://{}", mqtt.listen);
    }
    if let Some(coap) = &settings.devices.coap {
        eprintln!("           coap://{}", coap.listen);
    }
    eprintln!("  metrics  http://{}/metrics", settings.admin_listen);
}
