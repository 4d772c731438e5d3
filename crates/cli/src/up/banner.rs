//! What `nearpath up` prints when all is up.

use nearpath_controller::Controller;
use nearpath_kernel::sandbox::Isolation;

use super::args::Forward;
use super::plan::Plan;

/// What a person who typed `nearpath up` wants to know first.
pub(super) fn print(plan: &Plan, controller: &Controller) {
    let isolation = match plan.isolation {
        Isolation::Root => "namespaces, cgroups, seccomp",
        Isolation::UserNamespace => "user namespaces (`nearpath doctor` says what is lost without root)",
        Isolation::None => "none (--no-sandbox): functions run with your rights; edges between them are not enforced",
    };
    eprintln!("nearpath {} is up", env!("CARGO_PKG_VERSION"));
    eprintln!("  gateway  http://{}", plan.listen);
    if let Some(tls) = &plan.tls {
        let http3 = if tls.http3 { " (and HTTP/3)" } else { "" };
        eprintln!("           https://{}{http3}", tls.listen);
    }
    if let Some(mqtt) = plan.adapters.mqtt_listen {
        eprintln!("           mqtt://{mqtt}");
    }
    if let Some(coap) = plan.adapters.coap_listen {
        eprintln!("           coap://{coap}");
    }
    eprintln!("  metrics  http://{}/metrics", plan.admin_listen);
    eprintln!("  state    {}", plan.data_dir.display());
    match (controller.credentials(), &plan.secret_mount_path) {
        (None, _) => eprintln!("  password none (--insecure)"),
        (Some(_), folder) => {
            let folder = folder.as_ref().unwrap_or(&plan.data_dir);
            eprintln!("  password in {}", folder.join("basic-auth-password").display());
        }
    }
    eprintln!("  sandbox  {isolation}");
    if plan.forward == Forward::Tc {
        eprintln!("  packets  forwarded by the kernel (--forward tc)");
    }
    eprintln!("try: nearpath deploy -f examples/echo/stack.yml && nearpath invoke echo -d hello");
}
