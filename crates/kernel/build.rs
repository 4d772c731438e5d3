//! Compiles the programs of `bpf/` with clang. Without clang the build goes on: what needs them says so when it is chosen.

use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCES: [&str; 4] = ["sk_msg", "sock_fence", "sock_window", "tc_forward"];

fn main() {
    println!("cargo::rustc-check-cfg=cfg(nearpath_bpf)");
    println!("cargo::rerun-if-env-changed=CLANG");
    println!("cargo::rerun-if-changed=../../bpf");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let compiled: Result<Vec<()>, String> = SOURCES.into_iter().map(|name| compile(name, &out)).collect();
    match compiled {
        Ok(_) => println!("cargo::rustc-cfg=nearpath_bpf"),
        Err(why) => println!("cargo::warning=built without BPF programs, so without `sockmap` and forwarding: {why}"),
    }
}

fn compile(name: &str, out: &Path) -> Result<(), String> {
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target's architecture");
    let mut command = Command::new(&clang);
    command.args(["-target", "bpf", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-mcpu=v3"]);
    // Debian keeps <asm/types.h> where a compiler for another target does not look.
    command.arg(format!("-I/usr/include/{arch}-linux-gnu"));
    command.arg("-c").arg(format!("../../bpf/{name}.c")).arg("-o").arg(out.join(format!("{name}.o")));
    let output = command.output().map_err(|error| format!("{clang}: {error}; install clang"))?;
    let said = || String::from_utf8_lossy(&output.stderr).replace('\n', " ");
    if output.status.success() { Ok(()) } else { Err(format!("{clang} refused bpf/{name}.c: {}", said())) }
}
